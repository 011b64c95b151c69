"""JSON inside a column: the records of a stream, and a dead letter with text and cause for each that can't be read."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.testing import TestDriver, records
from holdfast.words import Version
from tests.apps import entries_of, read, settings, write

pytestmark = pytest.mark.spark

SCHEMA = "player string, points int, at timestamp, place struct<city: string, zip: int>, `a.b` int"


def event(**fields: Any) -> str:
    return json.dumps({"player": "ann", "at": "2030-01-01T00:00:01Z", **fields})


GOOD = [event(points=3), event(player="bob", points=-4, place={"zip": 1})]
BROKEN = {
    '{"player": "ann", "poi': "value is not JSON",
    "": "value is not JSON",
    "5": "value is not an object with these columns",
    '[{"player": "ann"}]': "value is not an object with these columns",
    event(points="many"): "value.points is not int: many",
    event(place={"zip": "x"}): "value.place.zip is not int: x",
    event(**{"a.b": []}): "value.a.b is not int: []",
    event(at="yesterday"): "value.at is not timestamp: yesterday",
    event(player=None, points=3): "no key: player is null",
    '{"player": "ann", "points": 3}': "no event time: at is null",
}
"""Texts, and why they can't be read."""


def parsed(app: hf.App, source: object) -> None:
    """Two readers: one whose condition no broken text fulfils, and one by a key of another type."""
    stream = app.stream(source, key="player", timestamp="at", parse=hf.json("value", SCHEMA))
    stream.where("points > 0").group_by().aggregate(points=hf.sum("points")).store("points")
    stream.drop("place").key_by("points").group_by().count().store("counts")


def test_texts_that_cannot_be_read_are_dead_letters_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    texts = "\n".join([*GOOD, *BROKEN]).encode() + b'\n{"player": "caf\xe9"}\n'
    (folder / "1.txt").write_bytes(texts)
    (folder / "2.txt").write_text("\n".join([GOOD[0], "again"]))
    app = hf.App("parsed", settings=settings(tmp_path, batch=hf.BatchSettings(max_ahead="36500d")), spark=spark)
    parsed(app, spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder)))
    with app:
        app.process_all_available()
        assert entries_of(app) == {"ann": {"points": 6}}
        assert entries_of(app, "counts") == {3: {"count": 2}, -4: {"count": 1}}
        log = app._started().log
        commits = [log.commit(Version(version)) for version in range(1, app.version + 1)]
    counts = [commit.counts for commit in commits if commit is not None]
    assert sum(each["records"] for each in counts) == 2 + len(BROKEN) + 1 + 2
    assert sum(each.get("dead", 0) for each in counts) == len(BROKEN) + 2, "each is reported once"
    letters = {record["value"]: (reason, record) for reason, record in whole_letters_of(tmp_path)}
    reason, record = letters.pop('{"player": "caf\ufffd"}')
    assert (reason, base64.b64decode(record["_bytes"])) == ("not UTF-8: value", b'{"player": "caf\xe9"}')
    found = {text: reason for text, (reason, _) in letters.items()}
    assert found == {**BROKEN, "again": "value is not JSON"}


def whole_letters_of(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    files = (folder / "base" / "parsed" / "dead-letters").glob("[0-9]*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [(letter["reason"], json.loads(letter["record"])) for letter in letters]


def test_texts_that_cannot_be_read_are_dead_letters_in_a_test_driver(spark: SparkSession) -> None:
    app = hf.App("parsed")
    parsed(app, records("value string, partition int, offset bigint"))
    driver = TestDriver(app)
    texts = [*GOOD, *BROKEN, None]
    driver.pipe("main", [{"value": text, "partition": 7, "offset": n} for n, text in enumerate(texts)])
    assert driver.store("points").items() == [("ann", {"points": 3})]
    assert driver.counts["records"] == len(texts)
    letters = driver.dead_letters()
    found = {letter["record"]["value"]: letter["reason"] for letter in letters}
    assert found.pop(None) == "value is null"
    assert found == BROKEN
    assert [letter["record"]["offset"] for letter in letters] == list(range(2, len(texts)))
    driver.crash().pipe("main", {"value": GOOD[0]})
    assert driver.store("points").items() == [("ann", {"points": 6})]


def test_bytes_with_a_key_beside_them_and_milliseconds_as_event_time(spark: SparkSession, tmp_path: Path) -> None:
    """As a Kafka topic has them. Every whole number is a time or a dead letter."""
    topic = pa.schema([("key", pa.string()), ("value", pa.binary())])
    values = [b'{"ms": 1893456000000}', b'{"ms": -9223372036854775808}', b'{"value": 1}', None, b'{"ms": "soon"}']
    write(tmp_path / "input", 1, [{"key": "ann", "value": value} for value in values], topic)
    write(tmp_path / "input", 2, [{"key": None, "value": b'{"ms": 1}'}], topic)
    app = hf.App("parsed", settings=settings(tmp_path, batch=hf.BatchSettings(max_ahead="36500d")), spark=spark)
    raw = read(spark, tmp_path / "input", "key string, value binary")
    table = app.table(raw, "ids", key="key", timestamp="ms", parse=hf.json("value", "ms bigint, value int"))
    with app:
        app.process_all_available()
        assert entries_of(app, table.name) == {"ann": {"ms": "2030-01-01T00:00:00Z", "value": None}}
    assert sorted((record["value"] or "", reason) for reason, record in whole_letters_of(tmp_path)) == [
        ("", "value is null"),
        ('{"ms": "soon"}', "value.ms is not bigint: soon"),
        ('{"ms": -9223372036854775808}', "no event time: ms is outside of the years 1 to 9999: -9223372036854775808"),
        ('{"ms": 1}', "no key: key is null"),
        ('{"value": 1}', "no event time: ms is null"),
    ]


def test_a_stream_that_is_opened_twice_has_one_source(spark: SparkSession) -> None:
    app, raw = hf.App("parsed"), records("value string")
    for store in ("one", "two"):
        stream = app.stream(raw, key="player", parse=hf.json("value", "player string"))
        stream.group_by().count().store(store)
    driver = TestDriver(app)
    driver.pipe("main", [{"value": '{"player": "ann"}'}, {"value": "x"}])
    assert [driver.store(store).get("ann") for store in ("one", "two")] == [{"count": 1}] * 2
    assert len(driver.dead_letters()) == 1


def test_options_and_types_of_the_schema(spark: SparkSession) -> None:
    from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType, TimestampType

    schema = StructType().add("player", StringType()).add("at", TimestampType()).add("n", ArrayType(IntegerType()))
    app = hf.App("parsed")
    parse = hf.json("value", schema, timestampFormat="dd.MM.yyyy HH:mm", allowSingleQuotes="true")
    stream = app.stream(records("value string"), key="player", timestamp="at", parse=parse)
    stream.group_by().aggregate(at=hf.max("at"), n=hf.max("n[1]")).store("seen")
    driver = TestDriver(app)
    driver.pipe("main", {"value": "{'player': 'ann', 'at': '01.01.2030 00:30', 'n': [1, 2]}"})
    ((key, row),) = driver.store("seen").items()
    assert (key, row["n"], row["at"].isoformat()) == ("ann", 2, "2030-01-01T00:30:00+00:00")


@pytest.mark.parametrize(
    ("columns", "parse", "message"),
    [
        ("value string", hf.json("values", "player string"), "no column 'values'. Did you mean 'value'"),
        ("value int", hf.json("value", "player string"), "'value' is of type int, and must be text or bytes"),
        ("value string", hf.json("value", "player strin"), "parse=json.'value', 'player strin'.*player strin|strin"),
        ("value string", hf.json("value", "array<int>"), "a record is an object: write columns"),
        ("value string, at date", hf.json("value", "player string, at date"), r"app.stream\(df.drop\('at'\), ...\)"),
        ("value string", hf.json("value", "name string"), "no column 'player'"),
        ("value string", hf.json("value", "player string, _broken int"), "'_broken' is the name of a column that Hold"),
        ("value string", hf.json("value", "player string, _Parsed int"), "'_Parsed' is the name of a column that Hold"),
        ("value string", hf.json("value", "player string, _text int"), "'_text' is the name of a column that Holdfast"),
        ("value string", hf.json("value", "player string, _unreadable int"), "Rename it in the schema or in the DataF"),
        ("value string, _text int", hf.json("value", "player string"), "'_text' is the name of a column that Holdfast"),
        ("value string, _parsed int", hf.json("value", "player string"), "'_parsed' is the name of a column that"),
        ("value string", "json", "parse='json' is not a way to read texts. Use hf.json"),
    ],
)
def test_a_wrong_parse_is_an_error_on_its_own_line(spark: SparkSession, columns: str, parse: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        hf.App("parsed").stream(records(columns), key="player", parse=parse)


def test_the_options_that_keep_broken_texts_are_not_for_users() -> None:
    with pytest.raises(TopologyError, match="the option 'mode' is Holdfast's own: leave it out"):
        hf.json("value", "player string", mode="FAILFAST")


def test_a_source_alone_is_not_an_app(spark: SparkSession) -> None:
    app = hf.App("parsed")
    app.stream(records("value string"), key="player", parse=hf.json("value", "player string"))
    with pytest.raises(TopologyError, match="no store yet"):
        TestDriver(app)
