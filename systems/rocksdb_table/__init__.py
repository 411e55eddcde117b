"""Rows as values in RocksDB: what fbgemm's SSD tables keep them in."""
