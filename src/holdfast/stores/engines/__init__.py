"""Engines: ordered bytes on one machine, at a version. RocksDB and memory, and the registry of both."""
