"""The heaviest keys of a task: those with the most of its reads, found by a sketch over a sample of them.

Of each bulk read a hundred keys are counted, after its answer was sent, each for as many as it stands for; of lookups
of one key every 64th, which are noted only and counted with the next heartbeat. About once
per minute the keys that have a notable share are named, for people, and the sketch starts over: so the names are of the
last minutes. Nothing else depends on them.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.stores.layouts.base import is_entry
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec

if TYPE_CHECKING:
    from datasketches import frequent_strings_sketch

PERIOD = 60.0
LONGEST = 300.0
"""After this long without enough reads, nothing is known any more."""
SAMPLED = 100
"""Keys per bulk read: 0.1 to 0.16 ms of the thread that has answered, whatever the size of the read."""
ENOUGH = 1_000
"""Sampled keys before any is named."""
SHARE = 0.01
"""The share of the reads that makes a key heavy."""
LOOKUPS = 64
"""Of this many lookups of one key, one is counted."""
_NOTED = 4_096
"""Lookups that are noted until the next heartbeat: more than there are in two seconds at 100,000 per second."""
NAMED = 3
_SLOTS = 10
"""The sketch has 2 ** 10 slots. Every key with more than 0.4% of the reads is among them."""
_LONGEST_TEXT = 40


class HeavyKeys:
    """The keys of one task's reads. Any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketch: frequent_strings_sketch | None = None
        self._since: float | None = None
        self._sampled = 0
        self._reads = 0
        self._names: tuple[str, ...] = ()
        self._lookups: deque[tuple[str, bytes]] = deque(maxlen=_NOTED)

    def add_lookup(self, store: str, key: bytes) -> None:
        """Notes the key of one of `LOOKUPS` lookups. It takes no lock: an event loop may call it."""
        self._lookups.append((store, key))

    def add(self, store: str, keys: pa.Array) -> None:
        """Counts some of the keys that were read together."""
        step = -(-len(keys) // SAMPLED)
        if not step:
            return
        with self._lock:
            first = self._reads % step  # others each time
            self._reads += 1
            for key in keys.take(pa.array(range(first, len(keys), step))).drop_null().to_pylist():
                self._count(store, key, step)

    def _count(self, store: str, key: bytes, weight: int) -> None:
        if is_entry(key):
            sketch = self._sketch = self._sketch or _new_sketch()
            sketch.update(f"{store}\0{key.decode('latin-1')}", weight)
            self._sampled += 1

    def heaviest(self, now: float, specs: Iterable[StoreSpec]) -> tuple[str, ...]:
        """The heaviest keys as text with their shares, the heaviest first. `now` is the monotonic clock."""
        with self._lock:
            while self._lookups:
                self._count(*self._lookups.popleft(), LOOKUPS)
            if self._since is None:
                self._since = now
            passed = now - self._since
            if passed < PERIOD or (self._sampled < ENOUGH and passed < LONGEST):
                return self._names
            sketch = self._sketch if self._sampled >= ENOUGH else None
            self._sketch, self._sampled, self._since = None, 0, now
        self._names = () if sketch is None else _names(sketch, {spec.name: spec for spec in specs})
        return self._names


def _new_sketch() -> "frequent_strings_sketch":
    from datasketches import frequent_strings_sketch  # 75 ms, which no start waits for

    return frequent_strings_sketch(_SLOTS)


def _names(sketch: "frequent_strings_sketch", specs: Mapping[str, StoreSpec]) -> tuple[str, ...]:
    from datasketches import frequent_items_error_type

    total = sketch.total_weight
    shares: dict[str, float] = {}
    for item, _, at_least, _ in sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_POSITIVES):
        store, _, key = item.partition("\0")
        if (spec := specs.get(store)) is not None:
            text = key_as_text(spec, key.encode("latin-1"))
            name = text if len(specs) == 1 else f"{store}/{text}"
            # Windows of one key are read under several stored keys.
            shares[name] = shares.get(name, 0.0) + at_least / total
    heavy = sorted((name for name, share in shares.items() if share >= SHARE), key=lambda name: (-shares[name], name))
    return tuple(f"{name} ({shares[name]:.0%})" for name in heavy[:NAMED])


def key_as_text(spec: StoreSpec, stored: bytes) -> str:
    """The key of an entry as people know it; its bytes in hexadecimal if they can't be read.

    >>> from holdfast.stores.formats.keys import encode_key
    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string", day="int"), codec="rows/1", engine="memory")
    >>> key_as_text(spec, encode_key(spec.key, ["ann", 7])), key_as_text(spec, b"?")
    ('ann, 7', '3f')
    """
    layout = layout_of(spec)
    try:
        columns = layout.key_columns(pa.array([layout.own_key(stored)], pa.binary()))
        text = ", ".join(str(columns[field.name][0].as_py()) for field in spec.key.fields)
    except (HoldfastError, pa.ArrowException, ValueError, IndexError, OverflowError):
        text = stored.hex()  # it comes from a caller, and may be anything
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
