"""Joins of two streams on real Spark: Kafka Streams' documented tables, Spark SQL as the oracle, errors, time."""

import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.topology.joining import How
from tests.apps import NOON, entries_of, get, read, settings, write
from tests.pipeline.joined import Oracle
from tests.pipeline.joined import Record as PlainRecord

pytestmark = pytest.mark.spark

SCHEMA = "kind string, player string, value string, at timestamp"
RECORD = pa.schema(
    [("kind", pa.string()), ("player", pa.string()), ("value", pa.string()), ("at", pa.timestamp("us", "UTC"))]
)
Record = dict[str, Any]


def record(kind: str, second: float, value: str | None, player: str | None = "k") -> Record:
    return {"kind": kind, "player": player, "value": value, "at": NOON + timedelta(seconds=second)}


QUICK = hf.BatchSettings(idle_interval="100ms")
HOWS: tuple[How, ...] = ("inner", "left", "outer")


def wait_until_alone(app: hf.App, store: str, player: str) -> None:
    """Waits until this player's records are the only ones that wait. The driver makes the last version on its own."""
    deadline = time.monotonic() + 60
    while True:
        status, found = get(app, f"/v1/stores/{store}/range")
        assert status == 200, found
        if {entry["key"][1] for entry in found["entries"]} == {player}:
            return app.process_all_available()
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize("hows", [("outer",), pytest.param(HOWS, marks=pytest.mark.slow)], ids=["outer", "all"])
def test_joins_equal_those_of_spark_sql(spark: SparkSession, tmp_path: Path, hows: tuple[How, ...]) -> None:
    """Random records out of order, over several batches. With a long grace none is late; with a short one many are."""
    dice = Random(5)
    records = [
        record(dice.choice(["left", "right"]), dice.randrange(600) / 10, str(n), f"p{dice.randrange(20)}")
        for n in range(600)
    ]
    batches = [records[:50], records[50:51], records[51:400], records[400:], [record("left", 1_000, "-1", "last")]]
    for number, batch in enumerate(batches):
        write(tmp_path / "input", number, batch, RECORD)
    app = hf.App("joins", settings=settings(tmp_path, batch=QUICK), spark=spark)
    stream = app.stream(read(spark, tmp_path / "input", SCHEMA), key="player", timestamp="at")
    left, right, _ = stream.branch("kind = 'left'", "kind = 'right'")
    right = right.select("player", "value", "at")
    window = hf.join_window(before="2s", after="5s", grace="10m")
    sinks = {how: hf.memory() for how in hows}
    for how, sink in sinks.items():
        left.drop("kind").join(right, within=window, how=how, name=f"by-{how}", prefix="right_").sink(sink)
    short, late, too_late = hf.join_window("3s", grace="20s"), hf.memory(), hf.memory()
    pairs = left.drop("kind").join(right, within=short, how="outer", name="short", prefix="right_").sink(late)
    pairs.late.sink(too_late)
    with app:
        app.process_all_available()
        wait_until_alone(app, "by-outer-left-unmatched", "last")
        wait_until_alone(app, "short-left-unmatched", "last")
    oracle = Oracle(short, "outer")
    rows = [row for batch in [*batches, []] for row in oracle.run([plain(each) for each in batch])]
    assert oracle.late > 50
    assert sorted(map(repr, map(values, late.rows()))) == sorted(repr(row[:3]) for row in rows)
    assert len(too_late.rows()) == oracle.late
    numbers = {n for row in map(values, too_late.rows()) for n in row[1:] if n is not None}
    assert len(numbers) == oracle.late and numbers.isdisjoint(n for row in rows for n in row[1:3])
    spark.read.parquet(str(tmp_path / "input")).createOrReplaceTempView("records")
    for how, sink in sinks.items():
        query = f"""
            SELECT coalesce(l.player, r.player) AS player, l.value AS value, l.at AS at, r.value AS right_value,
                r.at AS right_at
            FROM (SELECT * FROM records WHERE kind = 'left' AND player <> 'last') l
            {"FULL OUTER" if how == "outer" else how} JOIN (SELECT * FROM records WHERE kind = 'right') r
            ON l.player = r.player AND r.at BETWEEN l.at - INTERVAL 2 SECONDS AND l.at + INTERVAL 5 SECONDS
        """
        expected = [comparable(row.asDict()) for row in spark.sql(query).collect()]
        assert sorted(map(comparable, sink.rows())) == sorted(expected)


def plain(each: Record) -> PlainRecord:
    """A record as the oracle takes it."""
    return PlainRecord(each["kind"] == "left", each["player"], round(each["at"].timestamp() * 1000), int(each["value"]))


def values(row: dict[str, Any]) -> tuple[str, int | None, int | None]:
    one, other = row["value"], row["right_value"]
    return row["player"], None if one is None else int(one), None if other is None else int(other)


def comparable(row: dict[str, Any]) -> str:
    """A row as text. Spark gives times in the zone of this machine, without naming it."""
    return str([value.timestamp() if isinstance(value, datetime) else value for value in row.values()])


ORDERS = pa.schema([("customer", pa.int64()), ("item", pa.string()), ("ordered", pa.timestamp("us", "UTC"))])
PAYMENTS = pa.schema([("payer", pa.int64()), ("amount", pa.decimal128(10, 2)), ("paid", pa.timestamp("us", "UTC"))])


def test_two_sources_with_keys_of_other_names_and_a_table_of_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """An app that is stopped and started between two batches; both sources move the clock."""

    def order(customer: int | None, second: float, item: str) -> Record:
        return {"customer": customer, "item": item, "ordered": NOON + timedelta(seconds=second)}

    def payment(payer: int, second: float, amount: str) -> Record:
        return {"payer": payer, "amount": Decimal(amount), "paid": NOON + timedelta(seconds=second)}

    def started(sink: Memory, dead: Memory) -> hf.App:
        app = hf.App("orders", settings=settings(tmp_path), spark=spark)
        orders = app.stream(
            read(spark, tmp_path / "orders", "customer long, item string, ordered timestamp"),
            key="customer",
            timestamp="ordered",
            name="orders",
        )
        payments = app.stream(
            read(spark, tmp_path / "payments", "payer long, amount decimal(10,2), paid timestamp"),
            key="payer",
            timestamp="paid",
            name="payments",
        )
        paid = orders.join(payments, within=hf.join_window(after="10m", grace="1m"), name="paid").sink(sink)
        paid.to_stream().key_by("item").group_by().aggregate(n=hf.count(), last=hf.last("customer")).store("sold")
        app.dead_letters(dead)
        return app

    write(tmp_path / "orders", 0, [order(1, 0, "tea"), order(2, 0, "tea"), order(None, 0, "none")], ORDERS)
    write(tmp_path / "payments", 0, [payment(1, 60, "2.50"), payment(2, -1, "1.00")], PAYMENTS)
    first, dead = hf.memory(), hf.memory()
    with started(first, dead) as app:
        app.process_all_available()
    assert [row["customer"] for row in first.rows()] == [1], "a payment before the order is none of it"
    assert [row["reason"] for row in dead.rows()] == ["no key: customer is null"]
    write(tmp_path / "payments", 1, [payment(2, 600, "3.00"), payment(2, 600.001, "9.00")], PAYMENTS)
    write(tmp_path / "orders", 1, [order(1, 590, "cake")], ORDERS)
    second = hf.memory()
    with started(second, hf.memory()) as app:
        app.process_all_available()
        assert entries_of(app, "sold") == {"tea": {"n": 2, "last": 2}}
        newest = app._started().driver.newest
    assert [row for row in second.rows() if row["customer"] == 2] == [
        {
            "customer": 2,
            "item": "tea",
            "ordered": NOON,
            "amount": Decimal("3.00"),
            "paid": NOON + timedelta(minutes=10),
        }
    ]
    assert newest is not None and newest.clocks.sources.keys() == {"orders", "payments"}
    assert newest.counts["records"] == 3, "each record once, though two joins read payments"


def test_joins_that_are_not_possible(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    app = hf.App("wrong", settings=settings(tmp_path), spark=spark)
    frame = read(spark, tmp_path / "a", "player string, n int, points long, tags array<string>, at timestamp")
    left = app.stream(frame, key="player", timestamp="at", name="a").drop("tags")
    right = app.stream(
        read(spark, tmp_path / "b", "who string, n int, at2 timestamp"), key="who", timestamp="at2", name="b"
    )
    within = hf.join_window("10m")
    with pytest.raises(TopologyError, match="keeps records under its name, in stores of its own. Give it one"):
        left.join(right, within=within)
    with pytest.raises(TopologyError, match="both sides have columns named n. Give those on the right a prefix"):
        left.join(right, within=within, name="j")
    with pytest.raises(TopologyError, match=r"key on the left is \(n int\) and on the right \(who string\)"):
        left.key_by("n").join(right, within=within, name="j")
    with pytest.raises(TopologyError, match=r"'10m' is not a join window. Use within=hf.join_window"):
        left.join(right, within="10m", name="j")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="how='right': there are inner, left, outer"):
        left.join(right, within=within, name="j", how="right")
    with pytest.raises(TopologyError, match="the column 'tags' can't be kept for the join"):
        app.stream(frame, key="player", timestamp="at").join(right, within=within, name="j")
    with pytest.raises(TopologyError, match="the stream on the left has no event time"):
        app.stream(frame, key="player").join(right, within=within, name="j")
    with pytest.raises(TopologyError, match="on='n' is for a join with a table"):
        left.join(right, within=within, name="j", on="n")  # type: ignore[call-overload]
    made = left.join(right, within=within, name="j", prefix="b_", how="outer")
    columns = "player string, n int, points bigint, at timestamp, b_n int, b_at2 timestamp"
    assert repr(made) == f"Joined('j', key=['player'], columns='{columns}')"
    assert "outer join within 10m, grace 0s" in app.describe()
    with pytest.raises(TopologyError, match="two outputs named 'j'. Give the join another name"):
        left.join(right, within=within, name="j", prefix="b_")
