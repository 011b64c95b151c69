"""Streams, aggregates and tables as a user writes them down: a description of the work, without Spark or I/O."""
