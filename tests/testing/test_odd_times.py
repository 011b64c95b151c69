"""Times that stand for missing ones, and all others that 64 bits have: each is a record or a dead letter."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.testing import TestDriver, records
from tests import apps
from tests.testing.test_driver import START

YEAR_1, YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
EDGES = [
    *(-(2**63) // 1000 + 1, 2**63 // 1000, -(2**53), 2**53, -(2**31), 2**31 - 1, -1, 0, 1),
    *(YEAR_1 - 366 * 86_400_000, YEAR_1 - 1, YEAR_1, YEAR_1 + 1, YEAR_10000 - 1, YEAR_10000, YEAR_10000 + 1),
]
"""Milliseconds since 1970."""
DAYS = [-(2**31), 2**31 - 1, -719_529, -719_163, -719_162, 2_932_896, 2_932_897, 0]
times = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63) // 1000 + 1, 2**63 // 1000))
days = st.one_of(st.sampled_from(DAYS), st.integers(-(2**31), 2**31 - 1))
NOW = round(START.timestamp() * 1000)


class Keep(hf.Processor):
    kept = hf.KeyValueStore("kept", value=str)

    def process(self, key: Any, event: Any, ctx: hf.Context) -> None:
        self.kept[key] = str(event)
        ctx.forward(key, {"at": event.at, "when": event.when})


class ByTime(hf.Processor):
    kept = hf.KeyValueStore("by-time", key=datetime, value=int)

    def process(self, key: datetime, event: Any, ctx: hf.Context) -> None:
        self.kept[key] = self.kept.get(key, 0) + 1


class ByDay(hf.Processor):
    kept = hf.KeyValueStore("by-day-too", key=date, value=int)

    def process(self, key: date, event: Any, ctx: hf.Context) -> None:
        self.kept[key] = self.kept.get(key, 0) + 1


WINDOWS: dict[str, Any] = {
    "tumbling": hf.tumbling("1h"),
    "hopping": hf.hopping("1h", every="10m"),
    "sliding": hf.sliding("10m"),
    "session": hf.session("10m"),
}


def odd_app() -> hf.App:
    """Event times, keys and values of every kind of operator."""
    app = hf.App("odd", settings=hf.Settings(partitions=2))
    columns = records("player string, when timestamp, day date, at timestamp")
    stream = app.stream(columns, key="player", timestamp="at")
    stream.process(Keep, output="player string, at timestamp, when timestamp", on_error="dead_letter")
    values = stream.group_by().aggregate(last=hf.last("when"), least=hf.min("day"), n=hf.count())
    table = values.store("values")
    stream.key_by("when").process(ByTime, on_error="dead_letter")
    stream.key_by("day").process(ByDay, on_error="skip")
    stream.group_by("when").count().store("whens")
    stream.group_by("day").count().store("days")
    stream.join(table, name="looked-up", prefix="of_")
    stream.join(stream, within=hf.join_window("10s"), name="pairs", prefix="other_")
    for name, windows in WINDOWS.items():
        counted = stream.group_by().window(windows).aggregate(n=hf.count(), last=hf.last("when")).store(name)
        counted.final()
        _ = counted.late.to_stream()
        merger: Any = {"merger": add} if name == "session" else {}
        folded = (
            stream.group_by().window(windows).aggregate_with(int, one_more, value=int, on_error="dead_letter", **merger)
        )
        folded.store(f"{name}-fold", emit="updates")
    return app


def one_more(value: int, event: Any) -> int:
    return value + 1


def add(one: int, other: int) -> int:
    return one + other


def every_edge(test: Any) -> Any:
    for n, (at, when) in enumerate(zip(EDGES, reversed(EDGES), strict=True)):
        test = example(at=at, when=when, day=DAYS[n % len(DAYS)])(test)
    return test


@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(at=times, when=times, day=days)
@every_edge
@pytest.mark.filterwarnings("ignore:A record of 'main' has the event time")
def test_every_time_is_a_record_or_a_dead_letter(at: int, when: int, day: int) -> None:
    driver = TestDriver(odd_app())
    odd = {"player": "ann", "when": when, "day": day, "at": at}
    usual = {"player": "bob", "when": NOW, "day": 20_000, "at": NOW}
    for record in (odd, usual, odd):
        driver.pipe("main", record)
    for name in driver._outputs:
        if name != "dead-letters":
            driver._outputs[name].rows()
    letters = driver.dead_letters()
    counted = sum(row["n"] for row in driver.output("tumbling") if row["player"] == "ann")
    is_time = YEAR_1 <= at <= NOW + 3_600_000
    assert is_time == bool(counted)
    assert is_time or any("event time" in letter["reason"] for letter in letters)
    assert is_time == (driver.store("values").get("ann") is not None)
    for name in ("values", "whens", "days", "kept", "by-time"):
        assert len(dict(driver.store(name).items())) >= 1, name


ODD = pa.schema(
    [("player", pa.string()), ("day", pa.date32()), *((n, pa.timestamp("us", "UTC")) for n in ("when", "at"))]
)
ODD_MICROS = [-(2**63), -(2**63) + 1, YEAR_1 * 1000 - 1, YEAR_1 * 1000, 2**63 - 2, 2**63 - 1]


@pytest.mark.spark
def test_on_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    """Also where queries show them."""
    noon = round(apps.NOON.timestamp() * 1_000_000)
    first = [(f"p{n}", micros, noon) for n, micros in enumerate(ODD_MICROS)]
    found = [*first, *((f"q{n}", noon, micros) for n, micros in enumerate(ODD_MICROS))]
    days_of = [DAYS[n % len(DAYS)] for n in range(len(found))]
    moments = [pa.array([row[n] for row in found], pa.int64()).view(pa.timestamp("us", "UTC")) for n in (1, 2)]
    columns = [pa.array([row[0] for row in found]), pa.array(days_of, pa.int32()).view(pa.date32()), *moments]
    (tmp_path / "input").mkdir()
    pq.write_table(pa.table(columns, schema=ODD), tmp_path / "input" / "1.parquet")
    app = hf.App("odd", settings=apps.settings(tmp_path), spark=spark)
    frame = apps.read(spark, tmp_path / "input", "player string, day date, when timestamp, at timestamp")
    stream = app.stream(frame, key="player", timestamp="at")
    stream.process(Keep, output="player string, at timestamp, when timestamp", on_error="dead_letter")
    stream.key_by("when").process(ByTime, on_error="dead_letter")
    stream.group_by("when", "day").count().store("whens")
    stream.group_by().aggregate(last=hf.last("when"), least=hf.min("day")).store("values")
    windows = stream.group_by().window(hf.sliding("10m")).count().store("windows")
    rows, letters = Memory(), Memory()
    windows.sink(rows)
    app.dead_letters(letters)
    with app:
        app.process_all_available()
        values = apps.entries_of(app, "values")
        status, whens = apps.get(app, "/v1/stores/whens/range")
    assert {"p0", "p1", "p2", "p3", "p4", "p5", "q3"} == set(values)
    assert values["p0"]["last"] == "-290308-12-21T19:59:05.224192Z"
    assert status == 200 and len(whens["entries"]) == 7
    seen = [json.loads(str(each["record"]))["player"] for each in letters.rows()]
    assert {*seen} >= {"q0", "q1", "q2", "q4", "q5", "p0", "p1", "p2", "p4", "p5"}
    assert len(rows.rows()) >= 7
