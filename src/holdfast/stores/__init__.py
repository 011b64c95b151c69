"""Stores: typed state on ordered bytes, on one machine, without network and without Spark.

From the outside in: a kind of store (`kinds`) is a typed view, a layout (`layouts`) says where its entries are,
`codecs` and `formats` turn keys and values into bytes, and an engine (`engines`) keeps ordered bytes at a version.
`schema` says what values look like and how that may change. `spec` is what the log keeps of a store.
"""
