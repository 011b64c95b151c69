"""All layouts: which one a store has, what a state part changes, and what a reader sees of a cell."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.stores.access import ENTRY_SCHEMA, DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import NotByKey
from holdfast.stores.layouts.bounded import BoundedLayout
from holdfast.stores.layouts.plain import PlainLayout
from holdfast.stores.layouts.recency import COUNT_KEY, count_cell, index_key, with_seq
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.sliced import SlicedLayout
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.layouts.versioned import VersionedLayout
from holdfast.stores.layouts.windowed import SessionLayout, WindowedLayout
from holdfast.stores.spec import SESSION, VERSIONED, WINDOW, StoreSpec

ANN, BOB = b"\x01ann", b"\x01bob"


def spec(**options: Any) -> StoreSpec:
    return StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1", **options)


TTL = {"ttl_ms": 8_000, "slice_ms": 1_000}
KEPT = {"retention_ms": 8_000, "slice_ms": 1_000}


def changed(store: StoreSpec, rows: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    part = pa.table([list(rows), list(rows.values())], schema=ENTRY_SCHEMA)
    found = layout_of(store).changed(part).in_order()
    assert found.gone.to_pylist() == [value is None for value in found.cells.payloads.to_pylist()]
    return dict(zip(found.keys.to_pylist(), found.cells.payloads.to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, PlainLayout),
        (TTL, SlicedLayout),
        ({"max_entries": 3}, BoundedLayout),
        ({"max_entries": 3, "ttl_ms": 8_000}, BoundedLayout),
        ({"kind": VERSIONED, **KEPT}, VersionedLayout),
        ({"kind": WINDOW, **KEPT}, WindowedLayout),
        ({"kind": SESSION, **KEPT}, SessionLayout),
    ],
)
def test_a_store_has_the_layout_of_its_options(options: dict[str, Any], layout: type) -> None:
    assert type(layout_of(spec(**options))) is layout


def test_indexes_and_notes_are_not_changes() -> None:
    rows = {
        BOB: None,
        ANN: pack(Cell(with_seq(7, b"3"))),
        index_key(7, ANN): pack(Cell(b"")),
        COUNT_KEY: count_cell(1),
    }
    assert changed(spec(max_entries=3), rows) == {ANN: b"3", BOB: None}


def test_of_copies_in_several_slices_the_newest_that_has_a_cell_counts() -> None:
    rows = {
        slice_prefix(2) + ANN: None,
        slice_prefix(3) + ANN: pack(Cell(b"new")),
        slice_prefix(1) + ANN: pack(Cell(b"old")),
        slice_prefix(1) + BOB: None,
        slice_prefix(2) + BOB: None,
    }
    assert changed(spec(**TTL), rows) == {ANN: b"new", BOB: None}


def test_of_a_history_only_the_latest_value_is_a_change() -> None:
    rows = {ANN: pack(Cell(b"new", 5)), slice_prefix(1) + ANN + b"\x00\x00" + bytes(16): pack(Cell(b"old", 1))}
    assert changed(spec(kind=VERSIONED, **KEPT), rows) == {ANN: b"new"}


def test_windows_have_no_entries_by_key_alone() -> None:
    with pytest.raises(NotByKey, match="store 'scores' is of kind window"):
        layout_of(spec(kind=WINDOW, **KEPT)).reader(DictBytes(), Now(wall=0))


def test_a_cell_is_visible_until_it_expires() -> None:
    layout, data = layout_of(spec(max_entries=3)), pack(Cell(with_seq(7, b"3"), expires=5))
    assert layout.visible(data, Now(wall=4)) == Cell(b"3", expires=5)
    assert layout.visible(data, Now(wall=5)) is None
    assert layout.visible(None, Now(wall=0)) is None


def test_only_layouts_know_their_bytes() -> None:
    """Areas, numbers of touches and notes are read nowhere else."""
    source = Path(holdfast.__file__).parent
    known = re.compile(r"\b(\w+_AREA|PREFIX_BYTES|SEQ_BYTES|split_seqs?|split_sliced\w*|REWRITE_NOTE|COUNT_KEY)\b")
    found = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if not path.is_relative_to(source / "stores/layouts") and known.search(path.read_text())
    ]
    assert found == []


def test_only_layouts_import_the_parts_that_know_bytes() -> None:
    """Sizes are checked where a store is declared, and an engine groups keys as they are dropped."""
    source = Path(holdfast.__file__).parent
    parts = r"(slices|recency|expiry|areas)\b"
    imported = re.compile(rf"stores\.layouts\.{parts}|stores\.layouts import .*\b{parts}")
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if imported.search(path.read_text())}
    outside = {path for path in found if not path.startswith(("stores/layouts/", "stores/formats/"))}
    assert outside == {"stores/options.py", "stores/kinds/containers.py", "stores/engines/memory_rows.py"}
