"""`holdfast get`, `range`, `windows`, `sessions` and `top` on a real group of two processes."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import app as command
from holdfast.client.errors import BadToken
from holdfast.errors import HoldfastError
from holdfast.query_command import MissingKeys
from holdfast.query_connection import BadTokenFile
from holdfast.rest_calls import NoInstances
from holdfast.stores.kinds.session import Session
from tests.client.conftest import BEST, GAME, LEVELS, NAMES, PLAYS, RANKING, START, VISITS, RunningGroup
from tests.query.instances import Driver


@pytest.fixture(scope="module")
def filled(group: RunningGroup) -> RunningGroup:
    group.commit(LEVELS, {("ann", 1): 7, ("ann", 2): 8, ("bob", 1): 9})
    group.commit(NAMES, {("ann",): {"points": 7, "tags": ["x", "y"]}, ("a\nb",): {"points": 1, "name": "z"}})
    group.put(PLAYS, ("ann",), ("ann", 1, START), ("ann", 2, START + 10_000))
    group.put(VISITS, ("ann",), (Session("ann", START, START + 4_000), 3))
    group.put(BEST, ("chess",), ("chess", [], START))
    group.put(RANKING, ("chess", 9, "ann"), (("chess", 9, "ann"), {}), (("chess", 7, "bob"), {}))
    return group


def run(group: RunningGroup, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(command, [*words, "--address", ",".join(group.addresses)])
    assert result.exit_code == code, result.output
    return result


def lines(group: RunningGroup, *words: str) -> list[list[str]]:
    return [line.split() for line in run(group, *words).output.splitlines()]


def rows(group: RunningGroup, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(group, *words, "--csv").stdout)))


def objects(group: RunningGroup, *words: str) -> list[object]:
    return [json.loads(line) for line in run(group, *words, "--json").stdout.splitlines()]


def test_get_prints_a_table(filled: RunningGroup) -> None:
    version = str(filled.driver.version)
    assert lines(filled, "get", "levels", '["ann",1]', '["bob",1]') == [
        ["player", "level", "value"],
        ["ann", "1", "7"],
        ["bob", "1", "9"],
        ["version", version],
    ]


def test_get_prints_json_and_csv(filled: RunningGroup) -> None:
    assert objects(filled, "get", "levels", '["ann",1]') == [{"key": ["ann", 1], "value": 7}]
    assert rows(filled, "get", "names", "ann") == [{"name": "ann", "points": "7", "tags": '["x","y"]'}]


def test_get_says_which_keys_are_missing_and_prints_the_others(filled: RunningGroup) -> None:
    result = run(filled, "get", "levels", '["ann",1]', '["cleo",1]', code=1)
    assert isinstance(result.exception, MissingKeys) and '["cleo",1]' in str(result.exception)
    assert "ann" in result.output


def test_a_range_has_a_column_per_component_and_field(filled: RunningGroup) -> None:
    found = [(row["player"], row["level"], row["value"]) for row in rows(filled, "range", "levels")]
    assert found == [("ann", "1", "7"), ("ann", "2", "8"), ("bob", "1", "9")]
    assert rows(filled, "range", "names") == [
        {"name": "a\nb", "points": "1", "value.name": "z", "tags": ""},
        {"name": "ann", "points": "7", "value.name": "", "tags": '["x","y"]'},
    ]
    assert "a?b" in run(filled, "range", "names").output, "a terminal doesn't obey what a key has"


def test_ranges_can_be_cut(filled: RunningGroup) -> None:
    def keys(*words: str) -> list[object]:
        return [entry["key"] for entry in objects(filled, "range", "levels", *words)]  # type: ignore[index]

    assert keys("--prefix", '["ann"]') == [["ann", 1], ["ann", 2]]
    assert keys("--from", '["ann",2]') == [["ann", 2], ["bob", 1]]
    assert keys("--to", '["ann",1]') == [["ann", 1]]
    assert keys("--reverse", "--limit", "1", "--at", "latest") == [["bob", 1]]
    run(filled, "range", "levels", "--prefix", '["ann"]', "--reverse", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ["range", "levels"],
        ["range", "levels", "--prefix", '["ann"]'],
        ["windows", "plays"],
        ["windows", "plays", "ann"],
        ["top", "best", "chess"],
        ["sql", "SELECT * FROM levels"],
    ],
)
def test_whether_there_are_more_is_said(filled: RunningGroup, words: list[str]) -> None:
    for all_, limit in ((True, "100"), (False, "1")):
        table, csv_, json_ = (run(filled, *words, "--limit", limit, *format) for format in ([], ["--csv"], ["--json"]))
        version = f"version {filled.driver.version}" + ("" if all_ else ", and there are more: --limit")
        assert table.output.splitlines()[-1] == version
        assert (
            len(json_.stdout.splitlines()) == len(csv_.stdout.splitlines()) - 1 == (len(table.output.splitlines()) - 2)
        )
        for each in (csv_, json_):
            assert each.stderr == ("" if all_ else "holdfast: there are more: --limit\n")


def test_windows_sessions_and_leaderboards(filled: RunningGroup) -> None:
    plays = [(row["start"], row["value"]) for row in rows(filled, "windows", "plays", "ann")]
    assert plays == [(str(START), "1"), (str(START + 10_000), "2")]
    assert len(objects(filled, "windows", "plays", "ann", "--from", str(START + 1))) == 1
    assert "there are more" in run(filled, "windows", "plays", "ann", "--limit", "1").output
    assert [row["key"] for row in rows(filled, "windows", "plays", "--from", str(START + 1))] == ["ann"]
    assert rows(filled, "sessions", "visits", "ann")[0]["end"] == str(START + 4_000)
    assert rows(filled, "sessions", "visits")[0]["end"] == str(START + 4_000)
    assert [row["player"] for row in rows(filled, "top", "best", "chess")] == ["ann", "bob"]
    assert [row["rank"] for row in rows(filled, "top", "best", "chess", "--limit", "1")] == ["1"]
    assert rows(filled, "top", "best", "chess", "--limit", "1", "--fields", "player") == [
        {"rank": "1", "player": "ann"}
    ]


def test_times_are_iso_in_a_table_and_milliseconds_for_programs(filled: RunningGroup) -> None:
    assert lines(filled, "windows", "plays", "ann")[1] == ["ann", "1970-01-01T00:16:40Z", "1970-01-01T00:16:50Z", "1"]
    assert rows(filled, "windows", "plays", "ann")[0]["start"] == str(START)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["get", "plays", "ann"], "Ask `holdfast windows plays KEY`."),
        (["windows", "names", "ann"], "Ask `holdfast get names KEY`, `holdfast range names`."),
        (["get", "names", "ann", "--at-least", "9999", "--timeout", "1s"], "Give it more time with --timeout"),
        (
            ["get", "names", "ann", "--at", "9999", "--timeout", "1s"],
            "is the newest one. Give it more time with --timeout",
        ),
        (["get", "names", "ann", "--timeout", "5"], "--timeout='5' is not a duration. Give a number with a unit"),
    ],
)
def test_next_steps_are_those_of_a_terminal(filled: RunningGroup, words: list[str], step: str) -> None:
    assert step in str(run(filled, *words, code=1).exception)


def test_sql_prints_rows_by_position(filled: RunningGroup) -> None:
    statement = "SELECT player, level AS player, value FROM levels ORDER BY 1, 2 LIMIT 2"
    version = ["version", str(filled.driver.version)]
    assert lines(filled, "sql", statement) == [
        ["player", "player", "value"],
        ["ann", "1", "7"],
        ["ann", "2", "8"],
        version,
    ]
    assert run(filled, "sql", statement, "--csv").output == "player,player,value\nann,1,7\nann,2,8\n"
    assert objects(filled, "sql", "SELECT count(*) AS key FROM levels", "--at", version[1]) == [{"key": 3}]
    assert "there are more: --limit" in run(filled, "sql", "SELECT * FROM levels", "--limit", "1").output
    assert "COPY is not possible here" in str(run(filled, "sql", "COPY levels TO 'x'", code=1).exception)
    assert run(filled, "sql", statement, "--at-least", "1", "--csv").output.startswith("player,player,value")


def test_addresses_are_found_in_the_environment_and_in_the_log(
    filled: RunningGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["get", "numbers", "7", "--json"]
    in_log = ["--app", "game", "--log", str(filled.driver.log.storage.place).removeprefix("file://")]
    found = CliRunner().invoke(command, [*words, *in_log])
    assert json.loads(found.output) == {"key": 7, "value": 7}, found.exception
    monkeypatch.setenv("HOLDFAST_CLIENT_ADDRESS", filled.addresses[0])
    assert json.loads(CliRunner().invoke(command, words).output) == {"key": 7, "value": 7}


def test_an_app_that_is_named_is_asked_and_no_address_of_the_environment(
    filled: RunningGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CLIENT_ADDRESS", filled.addresses[0])
    place = str(filled.driver.log.storage.place).removeprefix("file://")
    words = ["get", "numbers", "7", "--json", "--app", "nosuch", "--log", place]
    assert CliRunner().invoke(command, words).exit_code == 1
    both = CliRunner().invoke(command, [*words, "--address", filled.addresses[0]])
    assert both.exit_code == 2 and "can't be combined" in both.output


@pytest.mark.parametrize("words", [["get", "numbers", "7"], ["range", "numbers", "--from", "7", "--to", "7"]])
def test_how_fresh_an_answer_has_to_be_can_be_said(filled: RunningGroup, words: list[str]) -> None:
    for fresh in (["--require", "active"], ["--max-lag", "1"], ["--max-lag", "10s", "--require", "active"]):
        assert objects(filled, *words, *fresh) == [{"key": 7, "value": 7}]
    assert "'active'" in run(filled, *words, "--require", "standby", code=2).output
    assert "max_lag='x'" in str(run(filled, *words, "--max-lag", "x", code=1).exception)
    newer = str(filled.driver.version + 1)
    late = run(filled, *words, "--at-least", newer, "--timeout", "1s", code=1)
    assert "or ask for less" in str(late.exception)


@pytest.mark.parametrize("fresh", [["--at", "1"], ["--at-least", "1"], ["--max-lag", "1"], ["--require", "active"]])
def test_a_watch_has_no_version_to_be_fresh_at(filled: RunningGroup, fresh: list[str]) -> None:
    assert "not for watch" in run(filled, "watch", "numbers", *fresh, code=2).output


def test_a_log_without_instances_is_an_error_that_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = str(tmp_path_factory.mktemp("empty") / "log")
    Driver(url, GAME)
    found = CliRunner().invoke(command, ["get", "numbers", "7", "--app", "game", "--log", url])
    assert isinstance(found.exception, NoInstances) and "holdfast instance" in str(found.exception)


@pytest.mark.parametrize(("content", "why"), [(None, "No such file or directory"), (b"\xff", "it is not UTF-8")])
def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    found = CliRunner().invoke(command, ["get", "numbers", "7", "--token-file", str(file)])
    assert isinstance(found.exception, BadTokenFile)
    assert str(found.exception).startswith(f"--token-file {file} can't be read: {why}. Give a file")


def test_the_token_file_of_the_server_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "rest-tokens"
    file.write_text("# name token scopes\ndash 5f0c9d1b7a33e8c4 read:*\n")
    found = CliRunner().invoke(command, ["get", "numbers", "7", "--token-file", str(file)])
    assert isinstance(found.exception, BadToken)
    assert str(file) in str(found.exception) and "5f0c9d1b7a33e8c4" not in str(found.exception)


def test_errors_are_those_of_the_client(filled: RunningGroup) -> None:
    for words in (["get", "numbers", "seven"], ["get", "nothing", "1"], ["windows", "numbers", "7"]):
        assert isinstance(run(filled, *words, code=1).exception, HoldfastError)
    run(filled, "get", "numbers", "7", "--json", "--csv", code=2)
