"""Formats: how keys, rows and values stand as bytes, and which partition a key belongs to."""
