"""`fields=` and `partial=`: which fields of values are shown, and answers without partitions that can't be read now."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import holdfast as hf
from holdfast.cli import app as command
from holdfast.client.errors import NotReady
from holdfast.client.options import UnknownOption
from holdfast.log.appfile import AppSpec
from holdfast.query import task_reader
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.stores.access import Now
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.session import Session, SessionStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from tests.client.conftest import RANKING, SCORES
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import STATE, World
from tests.query.test_kinds import write

POINTS = KeyValueStore("points", value=dict)
PLAYS = WindowStore("plays", value=dict, size="10s", retention="1h")
VISITS = SessionStore("visits", value=dict, gap="5s", retention="1h")
PRICES = VersionedKeyValueStore("prices", value=dict, retention="1h")
BEST = TimestampedKeyValueStore("best", key=str, value=list[dict[str, Any]])
DECLARED: tuple[Any, ...] = (POINTS, PLAYS, VISITS, PRICES, BEST, RANKING, SCORES)
SPECS = tuple(store.spec(default_engine="memory") for store in DECLARED)
APP = AppSpec(id="game", partitions=2, stores=SPECS, subtopologies=subtopologies_of({spec.name: 0 for spec in SPECS}))
RANKED, RANKED_SPEC = ("chess", 9, "ann"), RANKING.spec(default_engine="memory")
START = 1_000_000
VALUE = {"a": 1, "b": 2}
FIELDS = [
    ("points", "get", "ann"),
    ("points", "entry", "ann"),
    ("points", "get_many", ["ann"]),
    ("points", "entries", ["ann"]),
    ("points", "range", "ann", "ann"),
    ("points", "prefix", "ann"),
    ("plays", "windows", "ann"),
    ("plays", "all_windows"),
    ("visits", "sessions", "ann"),
    ("visits", "all_sessions"),
    ("prices", "history", "ann"),
    ("prices", "as_of", "ann", START),
]
PARTIAL = [*FIELDS[3:-1], ("best", "top", "chess"), ("points", "count")]


@pytest.fixture
def world() -> World:
    world, now = World(APP), Now(START, START)
    write(world, POINTS, ("ann",), now, ("ann", VALUE))
    write(world, PLAYS, ("ann",), now, ("ann", VALUE, START))
    write(world, VISITS, ("ann",), now, (Session("ann", START, START + 1_000), VALUE))
    write(world, PRICES, ("ann",), now, ("ann", VALUE, START))
    write(world, RANKING, RANKED, now, (RANKED, {}))
    for task in world.tasks.values():
        task.versions = {9: task.versions[max(task.versions)]}
        task.now = now
    return world


@contextmanager
def asking(world: World) -> Iterator[Any]:
    """A call of a store by both clients, whose answers must be the same."""
    with serve(create_app(world.reader, lambda: STATE), port=0) as server, asyncio.Runner() as loop:
        blocking, awaited = hf.Client(server.url, timeout="1s"), hf.AsyncClient(server.url, timeout="1s")

        async def called(store: str, method: str, *args: Any, **options: Any) -> Any:
            found = getattr(awaited.store(store), method)(*args, **options)
            return [each async for each in found] if isinstance(found, AsyncIterator) else await found

        def call(store: str, method: str, *args: Any, **options: Any) -> Any:
            found = getattr(blocking.store(store), method)(*args, **options)
            one = list(found) if isinstance(found, Iterator) else found
            assert repr(one) == repr(loop.run(called(store, method, *args, **options)))
            return one

        yield call
        blocking.close()
        loop.run(awaited.close())


def values(found: Any) -> list[Any]:
    """The values of any answer."""
    if isinstance(found, dict):
        return [found] if "a" in found else [*found.values()]
    return [each.value for each in ([found] if hasattr(found, "value") else found)]


@pytest.mark.parametrize("call", FIELDS, ids=lambda call: call[1])
def test_fields_are_those_that_are_shown(world: World, call: tuple[Any, ...]) -> None:
    with asking(world) as ask:
        assert values(ask(*call)) == [VALUE]
        assert values(ask(*call, fields=["a"])) == [{"a": 1}]


@pytest.mark.parametrize("call", PARTIAL, ids=lambda call: call[1])
def test_a_partial_answer_names_what_it_leaves_out(world: World, call: tuple[Any, ...]) -> None:
    read = world.task_of(RANKED_SPEC, RANKED) if call[1] == "top" else world.task_of(SPECS[0], ("ann",))
    (lost,) = {*world.tasks} - {read}
    with asking(world) as ask:
        whole = ask(*call, partial=True)
        assert repr(whole) == repr(ask(*call))
        world.tasks[lost].error = task_reader.NotReady("It is not ready.")
        if call[1] != "entries":  # which asks the tasks of its keys only
            with pytest.raises(NotReady):
                ask(*call)
        found = ask(*call, partial=True)
        if call[1] != "count":
            assert len(found) == len(whole) == 1
            if call[1] != "entries":
                assert {*(found[0] if isinstance(found, list) else found).source.missing} == {str(lost)}
        world.tasks[read].error = world.tasks[lost].error
        with pytest.raises(NotReady):
            ask(*call, partial=True)


def test_a_terminal_says_what_is_left_out(world: World) -> None:
    read = world.task_of(SPECS[0], ("ann",))
    (lost,) = {*world.tasks} - {read}

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(command, [*words, "--address", server.url])
        assert result.exit_code == code, result.output
        return result

    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        assert (
            run("windows", "plays", "--fields", "a", "--csv").stdout
            == f"key,start,end,a\nann,{START},{START + 10_000},1\n"
        )
        assert "a" in run("sessions", "visits", "ann", "--fields", "a").stdout.split()
        world.tasks[lost].error = task_reader.NotReady("It is not ready.")
        for words in (["range", "points"], ["windows", "plays"], ["sessions", "visits"], ["top", "best", "chess"]):
            run(*words, "--timeout", "1s", code=1)
            last = run(*words, "--partial").stdout.splitlines()[-1]
            assert last.endswith(f"version 9, and without {lost}, which can't be read now")
        table = run("windows", "plays", "ann", "--partial", "--limit", "1", "--json")
        assert table.stderr == f"holdfast: without {lost}, which can't be read now\n"
        nothing = "no entries in the partitions that can be read now"
        assert run("range", "points", "--from", "bob", "--partial").stdout.split("\n")[-2] == nothing


def test_reads_of_one_partition_know_no_partial() -> None:
    with hf.Client("localhost:1") as client, pytest.raises(UnknownOption, match="'partial' is not an argument"):
        client.store("points").get("ann", partial=True)  # type: ignore[call-arg]
