"""Codecs, one per module. `holdfast.stores.codecs.values` finds the codec of a store."""
