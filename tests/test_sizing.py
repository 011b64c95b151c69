"""The sizing calculator against small real stores: its estimates of disk, tables and log."""

import json
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.errors import SettingsError
from holdfast.log.segments import STATE, STATE_SCHEMA, seal
from holdfast.settings.model import Settings
from holdfast.sizing import MIN_MEMORY, Load, estimate, kafka_streams_rule, parse_growth
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.types import Schema
from holdfast.words import Version
from tests.stores.making import specs
from tests.test_sizing_large import lookup_bytes

KEYS, STORES, VALUE, KEY = 50_000, 3, 200, 16
LOAD = Load(keys=KEYS, stores=STORES, value_bytes=VALUE, key_bytes=KEY, retention=timedelta(days=1))


def entries(seed: int, *, value: int = VALUE, key: int = KEY) -> pa.Table:
    """Cells under encoded string keys."""
    dice = random.Random(seed)
    names = pa.array(sorted({f"{dice.getrandbits(64):0{key}x}" for _ in range(KEYS)}))
    values = [pack(Cell(dice.randbytes(value))) for _ in range(len(names))]
    return pa.table([encode_keys(Schema.of(k="string"), [names]), pa.array(values, pa.binary())], schema=STATE_SCHEMA)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with the load, written in ten versions so that there are several files."""
    folder = tmp_path_factory.mktemp("estimate") / "state"
    names = [f"store-{n}" for n in range(STORES)]
    engine = open_engine("rocksdb", folder, specs(names), Resources(64 << 20))
    tables = {name: entries(n) for n, name in enumerate(names)}
    for version in range(1, 11):
        changes = []
        for name, table in tables.items():
            mine = table.take(pa.array(range(version - 1, len(table), 10)))
            changes.append((name, Changes(mine["key"].combine_chunks(), mine["value"].combine_chunks())))
        engine.apply(changes, Mark(Version(version), f"c{version}", "log-1"))
    engine.close()
    return folder


def test_state_on_disk_is_as_estimated(closed: Path) -> None:
    found = sum(path.stat().st_size for path in closed.glob("*.sst"))
    assert found == pytest.approx(estimate(LOAD).state.bytes, rel=0.15)


def test_filters_and_indexes_are_as_estimated(closed: Path) -> None:
    expected = estimate(replace(LOAD, hot=0.0)).in_cache.bytes
    assert lookup_bytes(closed) == pytest.approx(expected, rel=0.3)


def test_the_log_is_as_estimated() -> None:
    data = sum(len(seal([(STATE, "s", entries(n))]).data) for n in range(STORES))
    size = estimate(LOAD)
    assert data == pytest.approx(size.log.bytes - 2 * size.state.bytes, rel=0.15)


def test_a_larger_load_needs_more_of_everything() -> None:
    small = estimate(LOAD)
    for larger in ({"keys": 2 * KEYS}, {"value_bytes": 3 * VALUE}, {"growth_per_day": 0.5}):
        more = replace(LOAD, **larger)
        for less_line, more_line in zip(small.lines(), estimate(more).lines(), strict=True):
            assert more_line.bytes > less_line.bytes or less_line.bytes == MIN_MEMORY
    twice = estimate(replace(LOAD, standbys=1, instances=1))
    assert twice.disk.bytes == pytest.approx(2 * small.disk.bytes)
    assert twice.log.bytes == small.log.bytes


def test_the_number_of_partitions_costs_almost_nothing(tmp_path: Path) -> None:
    assert estimate(replace(LOAD, partitions=64)).lines() == estimate(LOAD).lines()
    assert kafka_streams_rule(64, 3) == 8 * kafka_streams_rule(8, 3)
    resources, tasks, names = Resources(64 << 20), 8, [f"store-{n}" for n in range(STORES)]
    engines = [open_engine("rocksdb", tmp_path / str(n), specs(names), resources) for n in range(tasks)]
    few = Changes(pa.array([b"\x01ann"]), pa.array([pack(Cell(b"x"))]))
    for engine in engines:
        engine.apply([(name, few) for name in names], Mark(Version(1), "c1", "log-1"))
    assert sum(engine.memory_bytes() for engine in engines) < tasks * (1 << 20)
    for engine in engines:
        engine.flush()
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*")) < tasks * (256 << 10)
    for engine in engines:
        engine.close()


def test_the_rule_for_kafka_streams_gives_about_5_gb() -> None:
    assert kafka_streams_rule(8, 3) == pytest.approx(5e9, rel=0.06)


@pytest.mark.parametrize("text", ["2%", "2/d", "x%/d", "2%/y", ""])
def test_an_invalid_growth_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="2%/d"):
        parse_growth(text)


@pytest.mark.parametrize("wrong", [{"keys": 0}, {"stores": 0}, {"standbys": -1}, {"hot": 1.5}, {"compressed": -0.1}])
def test_an_invalid_load_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        replace(LOAD, **wrong)


COMMAND = "--keys 5e6 --value-bytes 200 --partitions 8 --stores 3 --standbys 1 --retention 7d --growth 2%/d"


def test_the_command_prints_figures_with_their_formulas() -> None:
    result = CliRunner().invoke(app, ["size", *COMMAND.split()])
    assert result.exit_code == 0, result.output
    for part in ("17,230,285", "memory limit, per instance", "5,000,000 keys x 3 stores x 1.149 growth", "Kafka"):
        assert part in result.output
    text = CliRunner().invoke(app, ["size", "--help"]).output.replace("│", "")
    assert "In Holdfast they share one memory limit" in " ".join(text.split())
    found = json.loads(CliRunner().invoke(app, ["size", *COMMAND.split(), "--json"]).output)
    assert found["open files, at most per instance"]["files"] == 464
    assert found["log"]["bytes"] > found["state, one replica of all tasks"]["bytes"]


def test_an_app_has_as_many_partitions_as_its_settings_say() -> None:
    assert Load(keys=1, value_bytes=1).partitions == Settings().partitions
    result = CliRunner().invoke(app, ["size", "--keys", "1", "--value-bytes", "1"])
    assert f"{Settings().partitions} partitions x 1 stores" in result.output


@pytest.mark.parametrize(
    ("written", "keys"),
    [("1M", 1e6), ("5k", 5e3), ("2G", 2e9), ("1_000_000", 1e6), ("5e6", 5e6), ("1.5m", 1.5e6), ("7", 7)],
)
def test_numbers_may_have_suffixes(written: str, keys: float) -> None:
    result = CliRunner().invoke(app, ["size", "--keys", written, "--value-bytes", "200"])
    assert result.exit_code == 0, result.output
    assert f"{keys:,.0f} keys x 1 stores" in result.output


def test_bytes_may_have_units_and_counts_are_whole() -> None:
    command = "--keys 1k --value-bytes 2KiB --key-bytes 2e1 --partitions 1k --stores 3.0 --standbys 0 --changes 2k"
    result = CliRunner().invoke(app, ["size", *command.split()])
    assert result.exit_code == 0, result.output
    for part in ("2048 value", "23 key", "1000 partitions x 3 stores", "2000 changes per day"):
        assert part in result.output


@pytest.mark.parametrize(
    ("option", "written", "message"),
    [
        ("--keys", "1X", "'1X' is not a number. Write one such as"),
        ("--keys", "nan", "'nan' is not a number"),
        ("--keys", "k", "'k' is not a number"),
        ("--stores", "1.5", "'1.5' is not a whole number. Use 1 or 2."),
        ("--value-bytes", "2 kittenB", "'2 kittenB' is not a size"),
    ],
)
def test_an_invalid_number_is_refused_with_its_option(option: str, written: str, message: str) -> None:
    given = {"--keys": "5M", "--value-bytes": "200", option: written}
    result = CliRunner().invoke(app, ["size", *(part for pair in given.items() for part in pair)])
    assert result.exit_code == 2
    text = " ".join(result.output.replace("\u2502", " ").split())
    assert f"Invalid value for '{option}': {message}" in text
