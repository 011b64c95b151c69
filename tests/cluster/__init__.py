"""Real processes: a Spark cluster, instances as servers, the log on an S3 server, and what happens to them."""
