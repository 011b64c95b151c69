"""Statements in a worker: what they read, what they may not do, and what ends them. DuckDB is the real one."""

import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.query.task_reader import NotReady
from holdfast.query.wanted import NobodyWaits
from holdfast.settings.sql import SqlSettings
from holdfast.sql.errors import SqlBusy, SqlError, SqlMistake, SqlRefused, SqlTooLarge
from holdfast.sql.messages import Channel, Kind
from holdfast.sql.workers import Workers, _Run
from tests.freezing import freeze
from tests.instance.processes import until
from tests.sql.tables import MemoryTables

PLAYERS = pa.table({"player": [f"p{n}" for n in range(5_000)], "points": range(5_000), "team": ["a", "b"] * 2_500})
TEAMS = pa.table({"team": ["a", "b"], "town": ["Bern", "Basel"]})


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables({"players": PLAYERS, "all-teams": TEAMS})


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers(SqlSettings(memory="128MiB", time_limit="20s", rows=10_000))
    yield found
    found.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Workers]:
    found = Workers(SqlSettings(memory="128MiB", time_limit="2s", rows=10_000))
    yield found
    found.close()


def test_tables_are_joined_and_grouped(workers: Workers, tables: MemoryTables) -> None:
    result = workers.run(
        'SELECT town, count(*) AS players, max(points) AS best FROM players JOIN "all-teams" USING (team) '
        "GROUP BY town ORDER BY town",
        tables,
    )
    assert result.rows.to_pylist() == [
        {"town": "Basel", "players": 2_500, "best": 4_999},
        {"town": "Bern", "players": 2_500, "best": 4_998},
    ]
    assert result.more is False and result.tables is tables
    assert tables.opened == [["players", "all-teams"]] and tables.open_now == 0


@pytest.mark.parametrize(
    ("sql", "columns", "conditions"),
    [
        ("SELECT points FROM players WHERE player = 'p7'", {"player", "points"}, [("player", "=", ("p7",))]),
        ("SELECT max(points) FROM players", {"points"}, []),
        ("SELECT points FROM players ORDER BY points DESC LIMIT 3", {"points"}, []),
        ("SELECT player FROM players WHERE lower(player) = 'p7' OR team = 'a'", {"player", "team"}, []),
        ("SELECT p.points FROM players p WHERE p.team = 'a' AND p.player = 'p7'", None, [("player", "=", ("p7",))]),
    ],
)
def test_only_needed_columns_and_keys_are_read(
    workers: Workers, tables: MemoryTables, sql: str, columns: set[str] | None, conditions: list[object]
) -> None:
    """This fails if a release of DuckDB no longer asks a source as `sql/scans.py` expects it."""
    workers.run(sql, tables)
    (scan,) = tables.scans
    assert columns is None or set(scan.columns) <= columns
    assert [(each.column, each.op, each.values) for each in scan.conditions] == conditions


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(workers: Workers, tables: MemoryTables) -> None:
    for limit, more in ((4_999, True), (5_000, False), (None, False)):
        result = workers.run("SELECT * FROM players", tables, limit)
        assert (result.rows.num_rows, result.more) == (min(limit or 5_000, 5_000), more)
    assert workers.run("SELECT * FROM range(10001)", tables).more
    assert workers.run("SELECT * FROM range(1000000000)", tables).rows.num_rows == 10_000


def test_a_statement_needs_no_table(workers: Workers, tables: MemoryTables) -> None:
    result = workers.run("SELECT 1 AS one, NULL AS nothing WHERE false", tables)
    assert result.rows.num_rows == 0 and result.rows.column_names == ["one", "nothing"]
    assert workers.run("SHOW TABLES", tables).rows.column(0).to_pylist() == ["all-teams", "players"]
    assert workers.run("DESCRIBE players", tables).rows.num_rows == 3


REFUSED = [
    "COPY players TO '/tmp/stolen.csv'",
    "COPY (SELECT 1) TO '/tmp/stolen.csv'",
    "ATTACH '/tmp/stolen.db' AS other",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA version",
    "PRAGMA database_list",
    "SET memory_limit = '1TB'",
    "SET enable_external_access = true",
    "RESET threads",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine AS SELECT 1",
    "CREATE FUNCTION f(a) AS a + 1",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "INSERT INTO players VALUES ('x', 1, 'a')",
    "UPDATE players SET points = 0",
    "DELETE FROM players",
    "DROP VIEW players",
    "EXPORT DATABASE '/tmp/stolen'",
    "IMPORT DATABASE '/tmp'",
    "CALL pragma_version()",
    "EXPLAIN ANALYZE SELECT 1",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "SELECT 1; SELECT 2",
    "",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM read_csv('http://127.0.0.1/secret.csv')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM query('FROM read_text(''/etc/passwd'')')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_ndjson('/etc/passwd')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM read_duckdb('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM duckdb_extensions()",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_whatever_is_not_one_select_from_the_stores_is_refused(
    workers: Workers, tables: MemoryTables, sql: str
) -> None:
    with pytest.raises(SqlRefused) as refused:
        workers.run(sql, tables)
    assert "/root" not in str(refused.value) and "/etc" not in str(refused.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '/etc/passwd'",
        "FROM '/etc/passwd.csv'",
        "SELECT getenv('HOME')",
        "SELECT * FROM query('COPY players TO ''/tmp/stolen.csv''')",
        "SELECT * FROM pragma_database_list()",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM nope",
        "SELECT nope FROM players",
        "SELEC 1",
        "SELECT 1 +",
        "SELECT 'a'::int",
        "SELECT * FROM pandas_scan(1)",
        "SELECT * FROM tables",
        "SELECT * FROM os",
        "SELECT $1",
        "\x00",
        "SELECT '" + "x" * 70_000,
    ],
)
def test_mistakes_have_an_error_that_names_them(workers: Workers, tables: MemoryTables, sql: str) -> None:
    with pytest.raises((SqlMistake, SqlRefused)) as mistake:
        workers.run(sql, tables)
    assert str(mistake.value).endswith(("\n", ".", "!", "?")), "a sentence follows in answers"
    assert "Traceback" not in str(mistake.value) and str(Path.cwd()) not in str(mistake.value)
    assert not Path("/tmp/stolen.csv").exists()


def test_nothing_of_the_environment_or_the_settings_can_be_seen(
    workers: Workers, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OF_A_TEST", "top secret")
    text = str(workers.run("SELECT * FROM duckdb_settings()", tables).rows.to_pylist())
    assert "top secret" not in text and str(Path.home() / ".duckdb") not in text
    assert workers.run("SELECT * FROM duckdb_secrets()", tables).rows.num_rows == 0


def test_the_directory_of_the_instance_cant_be_seen_or_read(
    tables: MemoryTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB allows each statement to read the path of its own database, which for one in memory is a name as well."""
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", ":memory:.wal", ":memory:.wal.checkpoint", ":memory:.wal.recovery"):
        (tmp_path / name).write_text("top secret")
    own = Workers(SqlSettings(memory="128MiB", time_limit="20s"))
    try:
        for function in ("duckdb_settings", "duckdb_databases", "pragma_database_size"):
            assert str(tmp_path) not in str(own.run(f"SELECT * FROM {function}()", tables).rows.to_pylist())
        assert str(tmp_path) not in str(own.run("SELECT current_setting('allowed_paths')", tables).rows.to_pylist())
        for place in ("", "./", f"{tmp_path}/"):
            for read in ("text", "blob", "csv", "json"):
                for sql in (f"read_{read}('{place}:memory:.wal')", f"query('FROM read_{read}(''{place}:memory:'')')"):
                    with suppress(SqlError):
                        assert own.run(f"SELECT * FROM {sql}", tables).rows.num_rows == 0, sql
        with pytest.raises(SqlRefused):
            own.run(f"SELECT * FROM read_text('{tmp_path}/:memory:.wal')", tables)
    finally:
        own.close()


def test_so_many_scans_may_be_open_at_once(workers: Workers, tables: MemoryTables) -> None:
    def count(scans: int) -> list[dict[str, int]]:
        each = " UNION ALL ".join(["SELECT * FROM players WHERE points < 2"] * scans)
        found: list[dict[str, int]] = workers.run(f"SELECT count(*) AS n FROM ({each})", tables).rows.to_pylist()
        return found

    assert count(64) == [{"n": 128}]
    for scans in (65, 300):
        with pytest.raises(SqlTooLarge, match="at more than 64 places at once, the limit"):
            count(scans)
    again = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r, players WHERE n < 100 AND points = 1)"
    assert workers.run(f"{again} SELECT max(n) AS n FROM r", tables).rows.to_pylist() == [{"n": 100}]
    assert tables.open_now == 0


def test_a_mistake_that_is_found_late_is_named(workers: Workers, tables: MemoryTables) -> None:
    """Arrow, not DuckDB, raises for a row after the first batch; this once ended the process."""
    workers.run("SELECT 1", tables)
    (idle,) = workers._idle
    for value in ("CAST(CASE WHEN range = 9000 THEN 'a' ELSE '1' END AS INT)", "if(range = 9000, error('a'), 1)"):
        with pytest.raises(SqlMistake, match="'a'|Invalid Input Error: a"):
            workers.run(f"SELECT {value} FROM range(10000)", tables)
    assert workers._idle == [idle]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(10000000000) a, range(10000000000) b",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
        "SELECT max(a.points * b.points + c.points) FROM players a, players b, players c",
        "SELECT levenshtein(repeat('a', 100000), repeat('b', 100000))",  # DuckDB can't interrupt it
    ],
)
def test_a_statement_without_end_is_ended(hasty: Workers, tables: MemoryTables, sql: str) -> None:
    with pytest.raises(SqlTooLarge, match="ran for 2 s, the limit|more memory"):  # the recursive one grows
        hasty.run(sql, tables)
    assert tables.open_now == 0
    assert hasty.run("SELECT count(*) AS n FROM players", tables).rows.to_pylist() == [{"n": 5_000}]


def test_a_statement_ends_when_nobody_waits_for_its_result(workers: Workers, tables: MemoryTables) -> None:
    def check_wanted() -> None:
        if tables.opened:
            raise NobodyWaits("the client has left.")

    began = SYSTEM_CLOCK.monotonic()
    with pytest.raises(NobodyWaits):
        workers.run("SELECT count(*) FROM range(10000000000) a, range(10000000000) b", tables, None, check_wanted)
    assert SYSTEM_CLOCK.monotonic() - began < 10 and tables.open_now == 0
    assert workers.run("SELECT 1 AS one", tables).rows.to_pylist() == [{"one": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('a', 10000000000)",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT string_agg(range::varchar, ',') FROM range(1000000000)",
        "SELECT list_sort(range(1000000000))",
        "SELECT count(DISTINCT hash(range)) FROM range(1000000000)",
        "SELECT repeat('a', 100000) || range FROM range(10000)",
        "SELECT * FROM range(100000000) ORDER BY hash(range)",
    ],
)
def test_a_statement_that_needs_too_much_memory_ends_alone(workers: Workers, tables: MemoryTables, sql: str) -> None:
    with pytest.raises((SqlTooLarge, SqlMistake)):
        workers.run(sql, tables)
    assert workers.run("SELECT 1 AS one", tables).rows.to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("sql", ["SELECT len(range(60000000))", "SELECT len(range(points + 60000000)) FROM players"])
def test_memory_that_duckdb_does_not_count_is_limited_too(workers: Workers, tables: MemoryTables, sql: str) -> None:
    with pytest.raises(SqlTooLarge, match=r"more memory than sql.memory allows \(134,217,728 bytes\)"):
        workers.run(sql, tables)
    assert workers.run("SELECT 1 AS one", tables).rows.to_pylist() == [{"one": 1}]


def test_a_read_that_fails_is_the_error_of_the_statement(workers: Workers, tables: MemoryTables) -> None:
    tables.error = NotReady("task 0_1 is being restored.")
    for sql in ("SELECT sum(points) FROM players", "SELECT * FROM players"):
        with pytest.raises(NotReady, match="being restored"):
            workers.run(sql, tables)
    assert tables.open_now == 0


def test_a_scan_that_isnt_read_to_its_end_is_closed(workers: Workers, tables: MemoryTables) -> None:
    tables.tables["players"] = pa.concat_tables([PLAYERS] * 200)
    assert workers.run("SELECT player FROM players LIMIT 1", tables).rows.num_rows == 1
    assert tables.open_now == 0


def test_only_so_many_statements_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def popen(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        process = Popen(*given, **named)
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    few = Workers(SqlSettings(memory="128MiB", time_limit="20s", statements=1))
    tables = MemoryTables({"players": PLAYERS})
    failed: list[BaseException] = []

    def run() -> None:
        try:
            few.run("SELECT max(levenshtein(repeat('a', 100000 + points), repeat('b', 100000))) FROM players", tables)
        except SqlError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: bool(tables.scans), "the first statement")
    with pytest.raises(SqlBusy, match="as many as sql.statements allows"):
        few.run("SELECT 1", tables)
    (busy,) = started
    os.kill(busy, signal.SIGKILL)
    thread.join(20)
    assert len(failed) == 1 and "process ended" in str(failed[0])
    assert few.run("SELECT 1 AS one", tables).rows.num_rows == 1
    few.close()


def test_a_worker_that_ends_just_before_its_statement_is_replaced(
    workers: Workers, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.run("SELECT 1", tables)
    (idle,) = workers._idle
    idle._process.kill()
    idle._process.wait()
    monkeypatch.setattr(type(idle), "is_alive", True)  # it ended after it was looked at
    assert workers.run("SELECT count(*) AS n FROM players", tables).rows.to_pylist() == [{"n": 5_000}]


def test_a_worker_that_freezes_before_its_statement_is_replaced(workers: Workers, tables: MemoryTables) -> None:
    """Without that, the statement would wait for its whole time limit, and be refused as one that takes too long."""
    workers.run("SELECT 1", tables)
    (idle,) = workers._idle
    freeze(idle._process.pid)
    assert workers.run("SELECT count(*) AS n FROM players", tables).rows.to_pylist() == [{"n": 5_000}]
    assert idle._process.poll() == -signal.SIGKILL


def test_workers_that_never_begin_are_an_error_that_says_so(
    workers: Workers, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def send(channel: Channel, kind: Kind, body: bytes = b"") -> None:
        started.append(channel)
        raise BrokenPipeError

    monkeypatch.setattr(Channel, "send", send)
    with pytest.raises(SqlError, match="ended at once. The instance's log says why"):
        workers.run("SELECT 1", tables)
    assert len(started) == 2 and tables.open_now == 0


def test_tables_that_cant_be_opened_cost_no_worker(
    workers: Workers, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.run("SELECT 1", tables)
    (idle,) = workers._idle

    def restoring(names: object) -> None:
        raise NotReady("task 0_1 is being restored.")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "open", restoring)
        with pytest.raises(NotReady):
            workers.run("SELECT * FROM players", tables)
    assert workers._idle == [idle]
    assert workers.run("SELECT 1 AS one", tables).rows.num_rows == 1


def test_a_statement_has_so_much_processor_time(
    hasty: Workers, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system ends the worker if the instance doesn't, each statement after its own time."""
    for _ in range(3):
        hasty.run("SELECT 1", tables)
    (idle,) = hasty._idle
    soft, _ = resource.prlimit(idle._process.pid, resource.RLIMIT_CPU)
    assert 6 <= soft <= 20, "2 s for each of 2 threads, 2 s more, and what the process had used"
    monkeypatch.setattr(_Run, "_left", lambda self: 60.0)
    with pytest.raises(SqlTooLarge, match="process ended"):
        hasty.run("SELECT levenshtein(repeat('a', 100000), repeat('b', 100000))", tables)


def test_a_worker_has_no_network_of_its_own(workers: Workers, tables: MemoryTables) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SqlRefused):
            workers.run(f"SELECT * FROM read_text('http://127.0.0.1:{port}/x')", tables)
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
