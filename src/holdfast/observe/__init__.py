"""Observing a running instance: its health and its metrics."""
