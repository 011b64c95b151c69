"""Tools for testing: whole apps and single processors without Spark, and your own engines and kinds of stores."""

from holdfast.testing.driver import TestDriver
from holdfast.testing.engines import EngineConformance
from holdfast.testing.processor import ProcessorTest
from holdfast.testing.records import records
from holdfast.testing.stores import StoreConformance

__all__ = ["EngineConformance", "ProcessorTest", "StoreConformance", "TestDriver", "records"]
