"""Formats: keys, rows and values as bytes, and the partition of a key."""
