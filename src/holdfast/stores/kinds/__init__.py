"""The kinds of stores: each is a typed view over the bytes of one partition.

A new kind is one module here and one line below. A user's own kind is a subclass of `base.Store` in any module, and the
log has its place, `module:Class`. `view_of` reads a store of any kind by its spec in the log.
"""

from importlib import import_module
from typing import Any

from holdfast.errors import USER_ERRORS, TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.kinds.base import Store, View
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.scores import ScoreStore
from holdfast.stores.kinds.session import SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.spec import KEY_VALUE, SESSION, TIMESTAMPED, VERSIONED, WINDOW, StoreSpec

STORES: dict[str, type[Store[Any, Any]]] = {
    KEY_VALUE: KeyValueStore,
    TIMESTAMPED: TimestampedKeyValueStore,
    VERSIONED: VersionedKeyValueStore,
    WINDOW: WindowStore,
    SESSION: SessionStore,
}


_LEADERBOARD = f"{ScoreStore.__module__}:{ScoreStore.__qualname__}"


def kind_name(kind: str) -> str:
    """A kind as people are told it. The log has the place of the class of a leaderboard's scores.

    >>> kind_name("window"), kind_name("shop.stores:Basket"), kind_name(_LEADERBOARD)
    ('window', 'shop.stores:Basket', 'leaderboard-scores')
    """
    return "leaderboard-scores" if kind == _LEADERBOARD else kind


def store_class(kind: str) -> type[Store[Any, Any]]:
    """The class of a kind: one of Holdfast's, or the one at `module:Class`.

    >>> store_class("window").__name__
    'WindowStore'
    """
    if kind in STORES:
        return STORES[kind]
    module, _, name = kind.partition(":")
    try:
        found = getattr(import_module(module), name) if name else None
    except USER_ERRORS as error:  # importing a user's module runs it
        raise TopologyError(
            f"the kind of store {kind!r} can't be loaded: {type(error).__name__}: {error}. Install its package here "
            "too."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Store)):
        known = ", ".join(STORES)
        raise TopologyError(f"{kind!r} is not a kind of store. There are {known}, and your own as 'module:Class'.")
    return found


def store_spec(name: str, kind: str, **options: Any) -> StoreSpec:
    """The spec of a store of a kind, with these options.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = store_spec("recent", KEY_VALUE, key=Schema.of(player="string"), codec="msgpack/1", ttl="1h")
    >>> spec.ttl_ms, spec.slice_ms
    (3600000, 450000)
    """
    return store_class(kind).spec_of(name, **options)


def view_of(spec: StoreSpec, bytes_: ReadableBytes, now: Now, *, value: Any = Any) -> View[Any, Any]:
    """A view of a store at one time, from its spec in the log alone."""
    return store_class(spec.kind).VIEW(spec, bytes_, now, value=value)
