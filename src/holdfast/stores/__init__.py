"""Stores: typed state on ordered bytes, on one machine, without network and without Spark.

From the outside in: a store type is a key layout and a typed view (`kv`), its keys and values are bytes that carry
their format (`keys`, `cells`, `rows`, `values`), and an engine (`engine`, `memory`, `rocksdb`) keeps ordered bytes at a
version. `spec` is what the log remembers of a store, `partition` says which task a key belongs to.
"""
