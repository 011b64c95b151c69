"""The registry of layouts: which layout a store has."""

from functools import lru_cache

from holdfast.stores.layouts.base import Layout
from holdfast.stores.layouts.bounded import BoundedLayout
from holdfast.stores.layouts.expiring import ExpiringLayout
from holdfast.stores.layouts.plain import PlainLayout
from holdfast.stores.layouts.sliced import SlicedLayout
from holdfast.stores.layouts.versioned import VersionedLayout
from holdfast.stores.layouts.windowed import SessionLayout, WindowedLayout
from holdfast.stores.spec import SESSION, VERSIONED, StoreSpec


@lru_cache(maxsize=256)
def layout_of(spec: StoreSpec) -> Layout:
    """The layout of a store.

    >>> from holdfast.stores.formats.types import Schema
    >>> layout_of(StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1", max_entries=3)).lead
    8
    """
    if spec.max_entries:
        return BoundedLayout(spec)
    if spec.kind == VERSIONED:
        return VersionedLayout(spec)
    if spec.ttl_ms:
        return SlicedLayout(spec) if spec.slice_ms else ExpiringLayout(spec)
    if spec.slice_ms:
        return SessionLayout(spec) if spec.kind == SESSION else WindowedLayout(spec)
    return PlainLayout(spec)
