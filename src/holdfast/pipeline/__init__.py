"""The batch on Spark: planning it, running its tasks, committing its version, feeding the sinks."""
