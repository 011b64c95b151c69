"""Codecs, one a module. `holdfast.stores.codecs.values` has the table of them and finds the one of a store."""
