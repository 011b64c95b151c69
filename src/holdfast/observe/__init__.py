"""Seeing how a running instance is: its health, and what it counts."""
