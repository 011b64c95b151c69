"""Collected values: the latest ones by event time and position, for any batches."""

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.formats.rows import DamagedRow
from holdfast.testing import TestDriver
from holdfast.testing import records as records_of
from holdfast.topology.collecting import VALUE
from holdfast.topology.reducers import bind
from tests import apps
from tests.apps import NOON, entries_of, game, get, write

FAR = '["-8982-05-17","-6244-04-12","-0768-02-04","1970-01-01","7445-10-25","12921-08-18"]'
"""Dates of some million days before and after 1970."""
LATEST = bind("x", hf.collect("x", limit=3), "bigint", ["bigint"])

records = st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 2), st.integers(0, 2)), max_size=12)


def item(time: int, position: int | None, value: int) -> dict[str, int]:
    """As Spark's `to_json`, which leaves nulls out."""
    found = {"0": time, "1": position, VALUE: value}
    return {name: part for name, part in found.items() if part is not None}


@given(records, st.randoms(use_true_random=False))
def test_the_latest_values_are_the_same_for_any_batches(
    sent: list[tuple[int, int | None, int]], chance: random.Random
) -> None:
    ordered = sorted(sent, key=lambda each: (each[0], -1 if each[1] is None else each[1], each[2]))
    chance.shuffle(sent)
    state = [pa.nulls(1, pa.string()), pa.nulls(1, pa.string())]
    at = 0
    while at <= len(sent):
        size = chance.randint(1, 4)
        batch = json.dumps([item(*each) for each in sent[at : at + size]])
        state = LATEST.merge(state, [pa.array([batch])])
        at += size
    assert json.loads(state[0][0].as_py()) == [value for _, _, value in ordered[-3:]]
    assert len(json.loads(state[1][0].as_py())) <= 3, "what is kept is bounded"


def test_damaged_values_and_wrong_arguments_are_errors() -> None:
    with pytest.raises(DamagedRow, match="can't be read"):
        LATEST.merge([pa.array([None], pa.string()), pa.array(["[{"])], [pa.array(["[]"])])
    with pytest.raises(TopologyError, match="limit is a number from 1"):
        hf.collect("x", limit=0)
    with pytest.raises(TopologyError, match="Cast the column to a string"):
        bind("x", hf.collect("x"), "timestamp")
    with pytest.raises(TopologyError, match="Use whole numbers or dates as position"):
        bind("x", hf.collect("x"), "int", ["string"])


def test_dates_that_python_does_not_have_are_collected_in_their_order() -> None:
    app = hf.App("collected", settings=hf.Settings())
    read = records_of("k string, day date, page date, at timestamp")
    stream = app.stream(read, key="k", timestamp="at", position=["page"], name="days")
    stream.group_by().aggregate(days=hf.collect("day"), last=hf.collect("day", limit=2)).store("days")
    driver = TestDriver(app)
    days = [million * 1_000_000 for million in (4, -3, 0, -4, 2, -1)]
    for some in (days[:3], days[3:]):
        moments = pa.array(some, pa.int32()).view(pa.date32())
        driver.pipe("days", [{"k": "ann", "day": moments[n], "page": moments[n], "at": 0} for n in range(3)])
    assert driver.store("days").get("ann") == {"days": FAR, "last": '["7445-10-25","12921-08-18"]'}


@pytest.mark.spark
def test_spark_collects_what_the_task_merges(spark: SparkSession, tmp_path: Path) -> None:
    def sent(*points: int | None) -> list[dict[str, Any]]:
        return [game("ann", each, NOON + timedelta(seconds=each or 0)) for each in points]

    write(tmp_path / "input", 1, sent(5, 1, None, 4, 9))
    write(tmp_path / "input", 2, sent(7, 2))
    app = hf.App("collected", settings=apps.settings(tmp_path), spark=spark)
    stream = app.stream(apps.read(spark, tmp_path / "input"), key="player", timestamp="at", position=["points"])
    few = {
        "ints": hf.collect("points", limit=3),
        "texts": hf.collect("CAST(points AS string)"),
        "doubles": hf.collect("IF(points = 9, double('NaN'), points / 2)", limit=2),
        "dates": hf.collect("date_add(DATE'2026-01-01', CAST(points AS int))", limit=1),
        "far": hf.collect("date_from_unix_date(CAST(points - 5 AS int) * 1000000)"),
    }
    stream.group_by().aggregate(**few, last=hf.last("points")).store("latest")
    stream.group_by().window(hf.session("1m")).aggregate(ints=hf.collect("points", 2)).store("sessions")
    with app:
        app.process_all_available()
        assert app.version == 2
        assert entries_of(app, "latest") == {
            "ann": {
                "ints": "[5,7,9]",
                "texts": '["1","2","4","5","7","9"]',
                "doubles": '[3.5,"NaN"]',
                "dates": '["2026-01-10"]',
                "far": FAR,
                "last": 9,
            }
        }
        _, sessions = get(app, "/v1/stores/sessions/sessions/ann")
        assert [each["value"] for each in sessions["sessions"]] == [{"ints": "[7,9]"}]
