"""Tools for testing apps: processors without Spark, and your own engines and kinds of stores."""

from holdfast.testing.engines import EngineConformance
from holdfast.testing.processor import ProcessorTest
from holdfast.testing.stores import StoreConformance

__all__ = ["EngineConformance", "ProcessorTest", "StoreConformance"]
