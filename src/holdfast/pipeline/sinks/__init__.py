"""Sinks: where a version's rows go once the version exists."""
