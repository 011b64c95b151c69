"""Watching a store with the client, while instances are killed: every change once, in the order of the log."""

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app as command
from holdfast.client import errors
from holdfast.client.answers import Change
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.words import TaskId
from tests.client.conftest import GAME, LEVELS, NUMBERS, PLAYS, START, RunningGroup
from tests.instance.processes import until


class Watched:
    """A thread that watches a store."""

    def __init__(self, changes: Iterator[Change[int]]) -> None:
        self._changes = changes
        self.seen: list[Change[int]] = []
        self.failed: list[BaseException] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for change in self._changes:
                self.seen.append(change)
        except BaseException as error:  # noqa: BLE001  reported by the test
            self.failed.append(error)

    def wait(self, number: int) -> None:
        until(lambda: self.failed or len(self.seen) >= number, f"{number} changes")
        assert self.failed == []


def test_a_watch_goes_on_over_a_killed_instance(group: RunningGroup) -> None:
    first = group.driver.version + 1
    with hf.Client(group.addresses, timeout="60s") as client:
        watched = Watched(client.store("numbers", int).watch(from_version=first))
        values = itertools.count(1000)
        expected = []
        for round_ in range(3):
            for value in itertools.islice(values, 5):
                group.driver.commit(NUMBERS, {(value,): value, (value + 10_000,): -value})
                expected.append({value: value, value + 10_000: -value})
            killed = group.kill(round_ % 2)
            group.driver.commit(NUMBERS, {(5,): round_})
            expected.append({5: round_})
            until(lambda killed=killed: group.started_again(killed), "the instance is back")  # type: ignore[misc]
        watched.wait(sum(map(len, expected)))
        versions = [
            {change.key: change.value for change in changes}
            for _, changes in itertools.groupby(watched.seen, lambda change: change.version)
        ]
    assert versions == expected
    assert len({change.id for change in watched.seen}) == len(watched.seen)


def test_a_key_a_prefix_and_deletes_are_watched(group: RunningGroup) -> None:
    first = group.driver.version + 1
    group.commit(LEVELS, {("ann", 1): 1, ("bob", 1): 2})
    group.commit(LEVELS, {("ann", 1): None, ("ann", 2): 3})
    with hf.Client(group.addresses) as client:
        store = client.store("levels", int)
        one = list(itertools.islice(store.watch(("ann", 1), from_version=first), 2))
        assert [(change.key, change.value, change.deleted) for change in one] == [
            (("ann", 1), 1, False),
            (("ann", 1), None, True),
        ]
        several = list(itertools.islice(store.watch(prefix=("ann",), from_version=first), 3))
        assert sorted((change.version - first, change.key) for change in several) == [
            (0, ("ann", 1)),
            (1, ("ann", 1)),
            (1, ("ann", 2)),
        ]
        assert next(store.watch(prefix=("ann",), after=several[0].id)) == several[1]


def test_windows_are_watched_with_their_times(group: RunningGroup) -> None:
    first = group.driver.version + 1
    group.put(PLAYS, ("ann",), ("ann", 1, START))
    with hf.Client(group.addresses) as client:
        change = next(client.store("plays", int).watch("ann", from_version=first))
    assert (change.key, change.start, change.end, change.value) == ("ann", START, START + 10_000, 1)


def test_an_event_loop_watches_too(group: RunningGroup) -> None:
    first = group.driver.version + 1
    group.commit(NUMBERS, {(77,): 1})
    group.commit(NUMBERS, {(77,): 2})

    async def watched() -> list[int | None]:
        async with hf.AsyncClient(group.addresses) as client:
            changes = client.store("numbers", int).watch(77, from_version=first)
            return [(await anext(changes)).value for _ in range(2)]

    assert asyncio.run(watched()) == [1, 2]


def test_what_cant_be_watched_is_refused(group: RunningGroup) -> None:
    with hf.Client(group.addresses) as client:
        with pytest.raises(errors.BadEventId):
            next(client.store("numbers").watch(after="nonsense"))
        with pytest.raises(errors.VersionGone):
            next(client.store("numbers").watch(after=f"{'0' * 8}-1"))


def test_holdfast_watch_prints_changes(group: RunningGroup) -> None:
    first = group.driver.version + 1
    group.commit(LEVELS, {("cleo", 1): 7})
    group.commit(LEVELS, {("cleo", 1): None})
    words = ["watch", "levels", '["cleo",1]', "--from-version", str(first), "--limit", "2"]
    where = ["--address", group.addresses[0]]
    table = CliRunner().invoke(command, [*words, *where])
    assert [line.split() for line in table.output.splitlines()] == [
        ["version", "player", "level", "deleted", "value", "error"],
        [str(first), "cleo", "1", "false", "7", "-"],
        [str(first + 1), "cleo", "1", "true", "-", "-"],
    ]
    csv = CliRunner().invoke(command, [*words, "--csv", *where]).output.splitlines()
    assert csv == [
        "version,player,level,deleted,value,error",
        f"{first},cleo,1,false,7,",
        f"{first + 1},cleo,1,true,,",
    ]
    lines = CliRunner().invoke(command, [*words, "--json", *where]).output.splitlines()
    assert lines == [
        f'{{"version":{first},"key":["cleo",1],"value":7}}',
        f'{{"version":{first + 1},"key":["cleo",1],"deleted":true}}',
    ]


def test_holdfast_watch_prints_why_a_value_cannot_be_read(group: RunningGroup) -> None:
    first = group.driver.version + 1
    task = TaskId(GAME.number_of("levels"), partition_of(LEVELS.key, ("dan", 1), GAME.partitions))
    group.driver.commit_cells(LEVELS, {task: {encode_key(LEVELS.key, ("dan", 1)): pack(Cell(b"\xc1"))}})
    words = ["watch", "levels", '["dan",1]', "--from-version", str(first), "--limit", "1"]
    for option in ("--csv", "--json"):
        line = CliRunner().invoke(command, [*words, option, "--address", group.addresses[0]]).output.splitlines()[-1]
        assert "the value can't be read" in line


@pytest.mark.parametrize("option", [["--at", "latest"], ["--at", "3"], ["--at-least", "3"]])
def test_holdfast_watch_refuses_options_of_other_queries(option: list[str]) -> None:
    refused = CliRunner().invoke(command, ["watch", "levels", *option])
    assert refused.exit_code == 2 and "Give --from-version" in " ".join(refused.output.split())
