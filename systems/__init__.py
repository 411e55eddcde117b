"""The systems under comparison: one module or folder each, behind the contract of `systems.contract`."""
