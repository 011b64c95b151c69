"""For authors of kinds of stores: the base classes, and what a kind declares.

    class ReadOnlySketch(View[str, bytes]): ...

    class Sketch(Store[str, bytes], ReadOnlySketch):
        VIEW = ReadOnlySketch
        QUERIES = (Query("estimate", estimates, required={"item": str}),)

`examples/count_min_sketch.py` is a complete kind; `holdfast.testing.StoreConformance` tests it.
"""

from holdfast.stores.kinds.base import Options, Prefetch, Store, View
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.spec import StoreSpec

__all__ = ["TIME", "Item", "Options", "Prefetch", "Query", "Store", "StoreSpec", "View"]
