"""A topology: unique names, sources, and the numbers and schemas from the log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.topology.outputs import ForwardedRows
from holdfast.topology.topology import Operator, SubTopology, Topology
from holdfast.words import TaskId

KEY = Schema.of(player="string")


@dataclass(frozen=True)
class Sampling(Operator):
    """An operator that only this test knows."""

    def outputs(self, subtopology: SubTopology) -> tuple[ForwardedRows, ...]:
        return (ForwardedRows(subtopology.name, subtopology.number),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield "one in ten"


def store(name: str) -> StoreSpec:
    return StoreSpec(name=name, key=KEY, codec="msgpack/1")


def topology(**stores: list[str]) -> Topology:
    made = Topology()
    for name, own in stores.items():
        add(made, name, *own)
    return made


def add(made: Topology, name: str, *stores: str) -> None:
    specs = tuple(store(each) for each in stores)
    made.check_free(name, specs, "Give it another name.")
    stream: Any = None
    made.add(name, stream, KEY, specs, Sampling())


def test_only_planners_ask_for_an_operators_class() -> None:
    """So that a new operator is a module of topology/, a planning module and a line in PLANNERS."""
    source = Path(holdfast.__file__).parent
    others = (file for file in source.rglob("*.py") if not file.match("topology/*.py") and not file.match("*_plan.py"))
    asked = re.compile(r"^(?!\s*assert\b).*isinstance\([\w.]*operator,.*$", re.MULTILINE)
    assert [(file.name, line) for file in others for line in asked.findall(file.read_text())] == []


def test_names_and_stores_are_unique() -> None:
    made = topology(sample=["seen"])
    with pytest.raises(TopologyError, match=r"two outputs named 'sample'\. Give it another name\."):
        add(made, "sample", "others")
    with pytest.raises(TopologyError, match="two outputs named 'dead-letters'"):
        add(made, "dead-letters")
    with pytest.raises(TopologyError, match="two stores named 'seen'"):
        add(made, "again", "seen")
    assert [each.name for each in made.subtopologies] == ["sample"]


def test_it_adopts_numbers_and_schemas_from_the_log() -> None:
    made = topology(sample=["seen"], quiet=[])
    made.adopt({"sample": 4, "quiet": 2}, lambda spec: msgspec.structs.replace(spec, schema=3))
    assert made.subtopology("sample").tasks(2) == [TaskId(4, 0), TaskId(4, 1)]
    assert [spec.schema for spec in made.stores] == [3]
    assert made.outputs["sample"] == ForwardedRows("sample", 4), "outputs follow the number"


def test_one_frame_is_one_source() -> None:
    made = Topology()
    frame, other = (object(), object())
    source = made.add_source(frame, None)  # type: ignore[arg-type]
    assert source.name == "main"
    assert made.add_source(frame, "main") is source  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"is the source 'main' already"):
        made.add_source(frame, "games")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"has the source 'main' already.*Name it"):
        made.add_source(other, None)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="another DataFrame has this name"):
        made.add_source(other, "main")  # type: ignore[arg-type]
    assert made.sources == [source]
    assert made.add_source(other, "chats").name == "chats"  # type: ignore[arg-type]
