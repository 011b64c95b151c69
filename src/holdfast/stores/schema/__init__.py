"""Schemas: what stored values look like, how that may change, and how old entries come to the newest."""
