"""The overlay equals a dict of dicts at every version it has, whatever is flushed, merged or evicted."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.instance import overlay as overlays
from holdfast.instance import run as runs
from holdfast.instance.fingerprint import U64, fingerprint, fingerprint_of
from holdfast.instance.keys_below import KeysBelow
from holdfast.instance.overlay import READABLE, NotInOverlay, Overlay
from holdfast.instance.range_reads import IN_RANGES, read_ranges
from holdfast.instance.run import Index, Run, runs_of
from holdfast.stores.engines.base import Changes
from holdfast.stores.ranges import Ranges
from holdfast.words import NOTHING, Version

KEYS = st.binary(max_size=20) | st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"12345678", b"123456789"])
VALUES = st.none() | st.binary(max_size=6)
VERSIONS = st.lists(st.dictionaries(KEYS, VALUES, max_size=12), max_size=14)


def colliding(keys: pa.Array) -> U64:
    """Fingerprints with many collisions."""
    return (fingerprint(keys) & np.uint64(3)) << np.uint64(62)


def changes(entries: dict[bytes, bytes | None]) -> Changes:
    return Changes(pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary()))


def with_version(overlay: Overlay, version: int, *parts: Changes) -> Overlay:
    return overlay.with_version(Version(version), runs_of(Version(version), [("s", part) for part in parts]))


@given(st.lists(KEYS, max_size=40), st.integers(0, 5))
def test_fingerprints_depend_on_the_key_alone(keys: list[bytes], cut: int) -> None:
    whole = fingerprint(pa.array([b"before", *keys], pa.binary()))
    assert fingerprint(pa.array([b"before", *keys], pa.binary()).slice(1)).tolist() == whole[1:].tolist()
    assert [int(fingerprint(pa.array([key], pa.binary()))[0]) for key in keys] == whole[1:].tolist()
    assert [fingerprint_of(key) for key in keys] == whole[1:].tolist()


def low(keys: pa.Array) -> U64:
    """Fingerprints that are all in the lowest part of their range."""
    return fingerprint(keys) >> np.uint64(40)


@pytest.mark.parametrize("prints", [fingerprint, colliding, low])
def test_one_key_is_found_in_a_long_run_however_fingerprints_are_spread(prints: Callable[[pa.Array], U64]) -> None:
    keys = pa.array([b"%d" % n for n in range(0, 6_000, 2)], pa.binary())
    run = Run(keys, keys, Version(1), index=Index.of(prints(keys)))
    for n in range(0, 6_000, 3 if prints is not colliding else 601):
        key = b"%d" % n
        row = run.row_of(key, int(prints(pa.array([key], pa.binary()))[0]))
        assert row == (n // 2 if n % 2 == 0 else -1)


@pytest.mark.parametrize("prints", [fingerprint, colliding])
@settings(deadline=None, max_examples=settings().max_examples)
@given(
    versions=VERSIONS,
    flushes=st.sets(st.integers(1, 14)),
    untidy=st.sets(st.integers(1, 14)),
    budget=st.sampled_from([0, 600, 10**9]),
    lookups=st.lists(KEYS),
)
def test_it_equals_a_model_at_every_version(prints: Callable[[pa.Array], U64], **drawn: Any) -> None:
    def print_of(key: bytes) -> int:
        return int(prints(pa.array([key], pa.binary()))[0])

    with (
        patch.object(overlays, "fingerprint", prints),
        patch.object(overlays, "fingerprint_of", print_of),
        patch.object(runs, "fingerprint", prints),
    ):
        check_model(**drawn)


def check_model(
    versions: list[dict[bytes, bytes | None]],
    flushes: set[int],
    untidy: set[int],
    budget: int,
    lookups: list[bytes],
) -> None:
    overlay = Overlay.starting(NOTHING, {"s": KeysBelow()})
    engine: dict[bytes, bytes | None] = {}
    models: dict[int, dict[bytes, bytes | None]] = {0: {}}
    for number, entries in enumerate(versions, start=1):
        overlay = with_version(overlay, number, changes(entries))
        if number not in untidy:
            overlay = overlay.tidied().within(budget)
            assert not overlay.untidy
        models[number] = models[number - 1] | entries
        if number in flushes:
            for key, value in zip(*(a.to_pylist() for a in unflushed(overlay)), strict=True):
                engine[key] = value
            assert {k: v for k, v in engine.items() if v is not None} == {
                k: v for k, v in models[number].items() if v is not None
            }
            overlay = overlay.flushed(overlay.unflushed(), Version(number)).within(budget)
        assert overlay.floor >= number - READABLE + 1 or overlay.floor == 0
        for version in range(max(overlay.floor, overlay.base), number + 1):
            at = overlay.at(Version(version))
            wanted = list(dict.fromkeys([*lookups, *models[number]]))
            values, known = at.lookup("s", pa.array(wanted, pa.binary()))
            for key, value, is_known in zip(wanted, values.to_pylist(), known.to_pylist(), strict=True):
                assert (value if is_known else engine.get(key)) == models[version].get(key)
                assert at.get("s", key) == (value, is_known)
            below = dict(engine)
            for key, value in at.scan("s", b"", None):
                below[key] = value
            expected = {k: v for k, v in models[version].items() if v is not None}
            assert {k: v for k, v in below.items() if v is not None} == expected
            check_ranges(at, engine, list(zip([b"", *wanted], [None, *wanted[::-1]], strict=True)), expected)


def check_ranges(
    overlay: Overlay,
    engine: dict[bytes, bytes | None],
    pairs: list[tuple[bytes, bytes | None]],
    expected: dict[bytes, bytes],
) -> None:
    """Many ranges have all entries, also where the engine isn't asked."""
    family, ranges = overlay.families["s"], Ranges.of(pairs)

    def entries(start: bytes, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        return [(k, v) for k, v in sorted(engine.items()) if v is not None and is_within(k, start, stop)]

    found = pa.Table.from_batches(
        read_ranges(family.runs, ranges, family.below.may_have_in(ranges), entries), IN_RANGES
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (number, key, value)
        for number, (start, stop) in enumerate(pairs)
        for key, value in sorted(expected.items())
        if is_within(key, start, stop)
    ]


def is_within(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return key >= start and (stop is None or key < stop)


def unflushed(overlay: Overlay) -> tuple[pa.Array, pa.Array]:
    merged = overlay.unflushed().get("s")
    empty = pa.array([], pa.binary())
    return (empty, empty) if merged is None else (merged.keys, merged.values)


@given(entries=st.dictionaries(KEYS, VALUES, max_size=700), start=KEYS, stop=st.none() | KEYS, reverse=st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_run_scans_in_key_order(
    entries: dict[bytes, bytes | None], start: bytes, stop: bytes | None, reverse: bool
) -> None:
    part = changes(entries)
    run = Run(part.keys, part.values, Version(1))
    expected = [(k, v) for k, v in sorted(entries.items()) if k >= start and (stop is None or k < stop)]
    assert list(run.scan(start, stop, reverse=reverse)) == (expected[::-1] if reverse else expected)


def test_the_later_of_two_parts_of_one_version_wins() -> None:
    parts = [changes({b"a": b"1", b"b": b"1"}), changes({b"b": b"2"})]
    overlay = with_version(Overlay.starting(NOTHING, {"s": KeysBelow({b"c": b"cc"})}), 1, *parts)
    values, known = overlay.lookup("s", pa.array([b"a", b"b", b"c"], pa.binary()))
    assert (values.to_pylist(), known.to_pylist()) == ([b"1", b"2", None], [True, True, False])


def test_the_budget_evicts_the_oldest_entries() -> None:
    overlay = Overlay.starting(NOTHING, {"s": KeysBelow()})
    for version in range(1, 41):
        entries: dict[bytes, bytes | None] = {b"%04d" % (version * 1000 + n): bytes(30) for n in range(1000)}
        overlay = with_version(overlay, version, changes(entries))
        overlay = overlay.flushed(overlay.unflushed(), Version(version)).tidied().within(1_500_000)
        assert overlay.nbytes <= 1_500_000
    _, known = overlay.lookup("s", pa.array([b"1000", b"40000", b"40999"], pa.binary()))
    assert known.to_pylist() == [False, True, True]


def test_keys_after_all_that_were_given_up_are_known() -> None:
    overlay = Overlay.starting(NOTHING, {"s": KeysBelow()})
    for version in range(1, 41):
        entries: dict[bytes, bytes | None] = {b"%05d" % (version * 1000 + n): bytes(30) for n in range(1000)}
        entries[b"\xffnote"] = b"%d" % version
        overlay = with_version(overlay, version, changes(entries))
        overlay = overlay.flushed(overlay.unflushed(), Version(version)).tidied().within(1_500_000)
    family = overlay.families["s"]
    _, known = overlay.lookup("s", pa.array([b"00999", b"40999x", b"50000", b"\xffnote"], pa.binary()))
    assert known.to_pylist() == [False, True, True, True]
    ranges = Ranges.of([(b"01000", b"01001"), (b"39500", b"50000"), (b"39500", None), (b"00999", None)])
    assert family.below.may_have_in(ranges).tolist() == [True, False, False, True]


def test_unflushed_entries_are_never_evicted() -> None:
    overlay = Overlay.starting(NOTHING, {"s": KeysBelow()})
    for version in range(1, 20):
        overlay = with_version(overlay, version, changes({b"%d" % version: bytes(100)}))
        overlay = overlay.tidied().within(1)
    assert len(overlay.unflushed()["s"]) == 19


def test_an_old_version_is_refused() -> None:
    overlay = Overlay.starting(NOTHING, {"s": KeysBelow()})
    for version in range(1, 10):
        overlay = overlay.with_version(Version(version), {})
    with pytest.raises(NotInOverlay, match="version 2"):
        overlay.at(Version(2))
