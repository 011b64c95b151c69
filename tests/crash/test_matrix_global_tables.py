"""A crash at any step changes nothing in a join with a global table, nor in a processor that reads two of them.

A record's number says what it is: below 100 a game of a player in the place of its tens, from 100 on the place of its
tens with this number; one that ends with 9 deletes the place.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.log.appfile import AppSpec
from holdfast.pipeline.starting import app_spec
from holdfast.testing import records as frame_of
from holdfast.testing.records import as_table
from tests.crash.machine import PARTITIONS, Record, reached
from tests.crash.matrix import crash_twice, points_of_an_operator
from tests.crash.topology_machine import TopologyMachine

GAMES = frame_of("player string, number bigint, place bigint")
PLACES = frame_of("id bigint, city bigint, gone boolean")
LABELS = pa.table({"city": [101, 112, 123], "label": ["Bern", "Basel", "Chur"]})

BATCHES: list[list[Record]] = [
    [("ann", 11), ("bob", 21), ("", 101), ("", 112)],
    [("ann", 12), ("", 123), ("cid", 22)],  # the places of the version count for all of its games
    [("", 119), ("ann", 13), ("bob", 23)],  # a place is deleted
    [("bob", 14), ("", 111)],
    [],
]
SENT = [
    [("ann", 11, 112, "Basel", 2), ("bob", 21, None, None, 2)],
    [("ann", 12, 112, "Basel", 3), ("cid", 22, 123, "Chur", 3)],
    [("ann", 13, None, None, 2), ("bob", 23, 123, "Chur", 2)],
    [("bob", 14, 111, None, 3)],
]


class Labelled(hf.Processor):
    """The label of a game's city, and how many places there are."""

    places = hf.GlobalStore("places", key=int)
    labels = hf.GlobalStore("labels", key=int)
    games = hf.KeyValueStore("games", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.games[key] = self.games.get(key, 0) + 1
        label = None if event.city is None else self.labels.get(event.city)
        name, places = label["label"] if label else None, sum(1 for _ in self.places)
        ctx.forward(key, {"number": event.number, "city": event.city, "label": name, "places": places})


def places_app() -> hf.App:
    app = hf.App("app", settings=hf.Settings(partitions=PARTITIONS))
    games = app.stream(GAMES, key="player", name="games")
    places = app.global_table(PLACES, "places", key="id", deleted="gone")
    app.global_table(LABELS, "labels", key="city")
    joined = games.join(places, on="place", how="left", name="joined").to_stream()
    output = "player string, number bigint, city bigint, label string, places bigint"
    joined.process(Labelled, output=output, name="both")
    return app


class GlobalMachine(TopologyMachine):
    """A machine with two global tables. It compares the static one with its store in every version."""

    def app_spec(self) -> AppSpec:
        self.topology = places_app()._topology
        return app_spec("app", PARTITIONS, self.topology)

    def _tables(self, records: Sequence[Record]) -> dict[str, pa.Table]:
        games = [{"player": player, "number": n, "place": n // 10} for player, n in records if n < 100]
        places = [{"id": n // 10 % 10, "city": n, "gone": n % 10 == 9} for _, n in records if n >= 100]
        return {"games": as_table(GAMES, games, "games"), "places": as_table(PLACES, places, "places")}

    def sent(self) -> list[Any]:
        return [sorted(tuple(row.values()) for row in rows) for _, rows in sorted(self.memory.versions.items())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> GlobalMachine:
    machine = GlobalMachine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, GlobalMachine(tmp_path_factory.mktemp("counts")))


def test_without_a_crash_rows_are_the_expected_ones(undisturbed: GlobalMachine) -> None:
    assert undisturbed.sent() == SENT
    of_labels = [len(entries) for (_, store), entries in undisturbed.state().items() if store == "labels"]
    assert of_labels == [3], "one partition has all rows"


@pytest.mark.parametrize("point", points_of_an_operator(drops=False))
def test_crashes_at_any_point_change_nothing(
    point: str, counts: dict[str, int], undisturbed: GlobalMachine, tmp_path: Path
) -> None:
    """No store here has slices that could be dropped."""
    machine = GlobalMachine(tmp_path / "first")
    crash_twice(machine, BATCHES, point, counts[point], tmp_path / "new")
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
