"""Queries: reading the stores of a running app over HTTP, wherever their replicas are."""
