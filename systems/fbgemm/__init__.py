"""fbgemm's TBE: building it (`tbe`), systems that use it (`tbe_system`), and UVM with and without its cache."""
