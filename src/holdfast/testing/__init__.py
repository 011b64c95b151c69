"""For tests of what is built with Holdfast: processors without Spark, and engines and kinds of one's own."""

from holdfast.testing.engines import EngineConformance
from holdfast.testing.processor import ProcessorTest
from holdfast.testing.stores import StoreConformance

__all__ = ["EngineConformance", "ProcessorTest", "StoreConformance"]
