"""fbgemm's tables: building them (`tbe`), the systems made of them (`tbe_system`), its UVM and the cache before it."""
