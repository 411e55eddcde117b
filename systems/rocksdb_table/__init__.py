"""Rows as values in RocksDB: what fbgemm's SSD tables keep them in."""

from systems.rocksdb_table.system import RocksDBTable

__all__ = ["RocksDBTable"]
