"""Engines: ordered bytes on one machine, at a version. RocksDB, memory, and the table that names them."""
