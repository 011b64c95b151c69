"""Lets Spark find the data source "holdfast": it looks for a `DefaultSource` in packages named `pyspark_*`."""

from holdfast.spark_source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
