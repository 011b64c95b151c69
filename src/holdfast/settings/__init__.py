"""Settings: one typed value, put together from code, a file and the environment."""
