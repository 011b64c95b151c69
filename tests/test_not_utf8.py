"""Text that isn't UTF-8, as Kafka's bytes cast to a string can be: as a key, in an aggregate and in a processor."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from tests.apps import NOON, entries_of, read, settings, write

pytestmark = pytest.mark.spark

BYTES = pa.schema([("p", pa.binary()), ("c", pa.binary()), ("t", pa.binary()), ("at", pa.timestamp("us", "UTC"))])
BAD = b"caf\xe9"


class Visit(msgspec.Struct):
    city: str
    tags: list[str]


class Visits(hf.Processor):
    visits = hf.KeyValueStore("visits", value=Visit)

    def process(self, key: str, event: Visit, ctx: hf.Context) -> None:
        self.visits[key] = event
        ctx.forward(key, {"city": event.city})


def visit(player: bytes, city: bytes = "Zürich".encode(), tag: bytes = b"a") -> dict[str, Any]:
    return {"p": player, "c": city, "t": tag, "at": NOON}


def visits_app(spark: SparkSession, folder: Path) -> hf.App:
    app = hf.App("visits", settings=settings(folder), spark=spark)
    source = read(spark, folder / "input", "p binary, c binary, t binary, at timestamp")
    text = source.selectExpr(
        "CAST(p AS string) player", "CAST(c AS string) city", "array(CAST(t AS string)) tags", "at"
    )
    stream = app.stream(text, key="player", timestamp="at", position=["city"])
    table = stream.group_by().aggregate(n=hf.count(), top=hf.max(F.concat("city", F.lit("!"))), city=hf.last("city"))
    table.store("cities").sink(hf.files(str(folder / "cities"), format="json"))
    stream.process(Visits, output="player string, city string").sink(hf.files(str(folder / "visits"), format="json"))
    return app


def test_text_that_is_not_utf8_becomes_a_dead_letter_and_the_app_starts_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "input", 1, [visit(b"ann"), visit(BAD), visit(b"bob", BAD), visit(b"cleo", tag=BAD)], BYTES)
    with visits_app(spark, tmp_path) as app:
        app.process_all_available()
    shutil.rmtree(tmp_path / "base" / "visits" / "state")
    write(tmp_path / "input", 2, [visit(b"ann"), visit(b"dora")], BYTES)
    with visits_app(spark, tmp_path) as app:
        app.process_all_available()
        counts = {key: (row["n"], row["top"]) for key, row in entries_of(app, "cities").items()}
        assert counts == {"ann": (2, "Zürich!"), "cleo": (1, "Zürich!"), "dora": (1, "Zürich!")}
        assert set(entries_of(app, "visits")) == {"ann", "dora"}
    assert sorted({row["player"] for row in rows(tmp_path / "visits")}) == ["ann", "dora"]
    letters = {row["reason"]: json.loads(row["record"]) for row in rows(tmp_path / "base" / "visits" / "dead-letters")}
    whole = {reason: base64.b64decode(record["_bytes"]) for reason, record in letters.items()}
    assert whole == {
        "not UTF-8: player": BAD,
        "not UTF-8: city": BAD,
        "not UTF-8: tags": b"[" + BAD + b"]",
    }
    assert letters["not UTF-8: player"]["player"] == "caf\ufffd"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("[0-9]*.json") for line in path.read_text().splitlines()]
