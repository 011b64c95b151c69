"""The tables of inputs and outputs in Kafka Streams' documentation of joins, and an app with every join in them.

A step is one version. Each source also gets a record of another key per step, so that the event clock is at the step's
second.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import holdfast as hf

START = datetime(2026, 1, 1, tzinfo=UTC)
TICK = "tick"
ROWS = "id string, value string, gone boolean, at timestamp"
LINKS = "id string, fk string, gone boolean, at timestamp"
SOURCES = {"left": ROWS, "right": ROWS, "one": ROWS, "other": ROWS, "orders": LINKS, "customers": ROWS}
"""Tables on the left and right, streams on the left and right, and tables of a join by a foreign key."""

LAST = 130
"""The second at which all windows have closed."""

BOTH: dict[int, tuple[str, str | None]] = {
    1: ("left", None),
    2: ("right", None),
    3: ("left", "A"),
    4: ("right", "a"),
    5: ("left", "B"),
    6: ("right", "b"),
    7: ("left", None),
    8: ("right", None),
    9: ("left", "C"),
    10: ("right", "c"),
    11: ("right", None),
    12: ("left", None),
    13: ("right", None),
    14: ("right", "d"),
    15: ("left", "D"),
}
"""By second: the side that changes, and its value; None deletes it. Streams ignore records without a value."""

LATER = {40: ("left", "E"), 60: ("left", "F"), 80: ("right", "f"), 100: ("left", "G")}
"""Records of the join of two streams alone."""

TABLES: dict[str, dict[int, str]] = {
    "inner": {4: "A-a", 5: "B-a", 6: "B-b", 7: "deleted", 10: "C-c", 11: "deleted", 15: "D-d"},
    "left": {
        3: "A-None",
        4: "A-a",
        5: "B-a",
        6: "B-b",
        7: "deleted",
        9: "C-None",
        10: "C-c",
        11: "C-None",
        12: "deleted",
        15: "D-d",
    },
    "outer": {
        3: "A-None",
        4: "A-a",
        5: "B-a",
        6: "B-b",
        7: "None-b",
        8: "deleted",
        9: "C-None",
        10: "C-c",
        11: "C-None",
        12: "deleted",
        14: "None-d",
        15: "D-d",
    },
}

LOOKUPS: dict[str, dict[int, str]] = {
    "inner": {5: "B-a", 15: "D-d"},
    "left": {3: "A-None", 5: "B-a", 9: "C-None", 15: "D-d"},
}

_PAIRS = ["Aa", "Ba", "Ab", "Bb", "Ca", "Cb", "Ac", "Bc", "Cc", "Ad", "Bd", "Cd", "Da", "Db", "Dc", "Dd"]
PAIRS: dict[str, list[str]] = {
    "inner": sorted(_PAIRS),
    "left": sorted([*_PAIRS, "E", "F", "G"]),
    "outer": sorted([*_PAIRS, "E", "F", "G", "f"]),
}
"""Windows of 15 s and a grace of 5 s. The documentation ends before G comes out too."""

FOREIGN_KEYS: dict[int, tuple[str, str, str | None]] = {
    1: ("customers", "1", "foo"),
    2: ("orders", "k", "1"),
    3: ("orders", "k", "2"),
    4: ("orders", "k", "3"),
    5: ("customers", "3", "bar"),
    6: ("orders", "k", None),
    7: ("orders", "k", "1"),
    8: ("orders", "q", "10"),
    9: ("orders", "r", "10"),
    10: ("customers", "10", "baz"),
}
"""By second: the table, the key, and the foreign key or value. The documentation has the first two at once."""

LINKED: dict[str, dict[int, list[str]]] = {
    "inner": {
        2: ["k,1,foo"],
        3: ["k,deleted"],
        5: ["k,3,bar"],
        6: ["k,deleted"],
        7: ["k,1,foo"],
        10: ["q,10,baz", "r,10,baz"],
    },
    "left": {
        2: ["k,1,foo"],
        3: ["k,2,None"],
        4: ["k,3,None"],
        5: ["k,3,bar"],
        6: ["k,None,None"],
        7: ["k,1,foo"],
        8: ["q,10,None"],
        9: ["r,10,None"],
        10: ["q,10,baz", "r,10,baz"],
    },
}
"""The documentation's inner join sends a second delete for k at 4, which changes nothing, so here nothing is sent."""


def build(app: hf.App, frames: Mapping[str, Any]) -> None:
    """Adds every join to an app with these sources."""
    tables = {
        name: app.table(frames[name], name, key="id", timestamp="at", deleted="gone")
        for name in ("left", "right", "orders", "customers")
    }
    left, right = (
        app.stream(frames[name], key="id", timestamp="at", name=name).select("id", "value", "at")
        for name in ("one", "other")
    )
    for how in ("inner", "left", "outer"):
        tables["left"].join(tables["right"], how=how, name=f"tables-{how}", prefix="r_")
        left.join(right, within=hf.join_window("15s", grace="5s"), how=how, name=f"streams-{how}", prefix="r_")
    for how in ("inner", "left"):
        left.join(tables["right"], how=how, name=f"lookup-{how}", prefix="r_")
        tables["orders"].join(tables["customers"], on="fk", how=how, name=f"foreign-{how}", prefix="c_")


OUTPUTS = [
    *(f"{kind}-{how}" for kind in ("tables", "streams") for how in ("inner", "left", "outer")),
    *(f"{kind}-{how}" for kind in ("lookup", "foreign") for how in ("inner", "left")),
]

SECONDS = sorted({*BOTH, *LATER, LAST, LAST + 1})


def batch_at(second: int) -> dict[str, list[dict[str, Any]]]:
    """The records of a step by their source."""
    at = START + timedelta(seconds=second)
    batch: dict[str, list[dict[str, Any]]] = {
        name: [{"id": TICK, "fk" if name == "orders" else "value": TICK, "gone": False, "at": at}] for name in SOURCES
    }
    if second in BOTH:
        side, value = BOTH[second]
        row = {"id": "k", "value": value, "gone": value is None, "at": at}
        batch[side].append(row)
        if value is not None:
            batch["one" if side == "left" else "other"].append(row)
    if second in LATER:
        side, value = LATER[second]
        batch["one" if side == "left" else "other"].append({"id": "k", "value": value, "gone": False, "at": at})
    if second in FOREIGN_KEYS:
        table, key, value = FOREIGN_KEYS[second]
        named = "fk" if table == "orders" else "value"
        batch[table].append({"id": key, named: value, "gone": False, "at": at})
    return batch


def check(outputs: Mapping[str, Mapping[int, list[dict[str, Any]]]]) -> None:
    """Compares the rows of each output, by the second of its step, with the documented ones."""
    for how, expected in TABLES.items():
        assert _shown(outputs[f"tables-{how}"], _of_tables) == {second: [row] for second, row in expected.items()}, how
    for how, expected in LOOKUPS.items():
        rows = {second: each for second, each in outputs[f"lookup-{how}"].items() if second in BOTH}
        assert _shown(rows, _of_tables) == {second: [row] for second, row in expected.items()}, how
    for how, pairs in PAIRS.items():
        found = [row for each in _shown(outputs[f"streams-{how}"], _of_streams).values() for row in each]
        assert sorted(found) == pairs, how
    for how, linked in LINKED.items():
        assert _shown(outputs[f"foreign-{how}"], _of_links) == linked, how


def _shown(rows: Mapping[int, list[dict[str, Any]]], show: Any) -> dict[int, list[str]]:
    found = {second: sorted(show(row) for row in each if row["id"] != TICK) for second, each in rows.items()}
    return {second: each for second, each in found.items() if each}


def _of_tables(row: Mapping[str, Any]) -> str:
    return "deleted" if row.get("_deleted") else f"{row['value']}-{row['r_value']}"


def _of_streams(row: Mapping[str, Any]) -> str:
    return (row["value"] or "") + (row["r_value"] or "")


def _of_links(row: Mapping[str, Any]) -> str:
    return f"{row['id']},deleted" if row["_deleted"] else f"{row['id']},{row['fk']},{row['c_value']}"
