"""Three plans for one row per key: on real Spark they give the same rows; and which plan a batch gets."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.metrics import REGISTRY
from holdfast.pipeline.aggregation_plan import AggregationFrames
from holdfast.pipeline.driver import Step
from holdfast.pipeline.grouping import grouped
from holdfast.pipeline.plan_chooser import DEAD_LETTER_BATCHES, PlanChooser
from holdfast.pipeline.task_columns import BatchPlan
from holdfast.topology.topology import SubTopology
from holdfast.words import Millis, Version
from tests.apps import finish, game, points_app, write

KEYS: dict[str, list[Any]] = {
    "s string": ["a", "bb", "ß", ""],
    "s string, b boolean": [("a", True), ("a", False), ("b", True)],
    "i int": [1, -1, 0, 2**31 - 1],
    "l bigint, d date": [(1, datetime(2026, 1, 1, tzinfo=UTC).date()), (-5, datetime(1969, 1, 1, tzinfo=UTC).date())],
    "x binary": [b"", b"\x00\xff"],
    "t timestamp": [datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)],
    "z timestamp_ntz, h smallint": [(datetime(2026, 1, 1), 1), (datetime(2026, 1, 1), -1)],  # noqa: DTZ001
}
VALUES = "n int, y double, f float, at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
WALL = Millis(int(START.timestamp() * 1000) + 10**9)


def batches_by(plan: BatchPlan) -> float:
    return REGISTRY.get_sample_value("holdfast_table_batches_total", {"store": "points", "plan": plan.value}) or 0.0


def make_table(spark: SparkSession, folder: Path, key: str) -> SubTopology:
    app = hf.App("plans", settings=hf.Settings(base_dir=str(folder / "base")), spark=spark)
    frame = spark.readStream.schema(f"{key}, {VALUES}").parquet(str(folder))
    stream = app.stream(frame, key=[part.split()[0] for part in key.split(", ")], timestamp="at")
    counts = {"some": hf.count("n"), "total": hf.sum("n"), "heavy": hf.sum("f"), "average": hf.mean("n")}
    stream.group_by().aggregate(**counts, low=hf.min("n"), latest=hf.max("at")).store("table")
    return app._topology.subtopology("table")


@pytest.mark.spark
@pytest.mark.parametrize("key", KEYS)
def test_all_plans_give_the_same_rows(spark: SparkSession, tmp_path: Path, key: str) -> None:
    table = make_table(spark, tmp_path, key)
    records = []
    for n in range(60):
        chosen = KEYS[key][n % len(KEYS[key])]
        parts = chosen if isinstance(chosen, tuple) else (chosen,)
        values = (None if n % 7 == 0 else n, n / 3, None if n % 11 == 0 else n / 4, START + timedelta(seconds=n % 13))
        records.append((*parts, *values))
    batch = spark.createDataFrame(records, f"{key}, {VALUES}")
    planned = AggregationFrames(table, 2, 0)

    def rows(plan: BatchPlan) -> list[dict[str, Any]]:
        columns, delivered = planned.columns[plan], planned.rows(batch, Step(Version(1), WALL), plan)
        batches = delivered.toArrow().to_batches()
        if columns.inputs is not None:
            batches = list(grouped(columns, planned.operator.reducers, batches, 1_000))
        wanted = [*columns.keys, *columns.partials, columns.rows, columns.time or ""]
        return sorted(
            ({name: row[name] for name in wanted} for b in batches for row in b.to_pylist()),
            key=lambda row: repr([row[k] for k in columns.keys]),
        )

    raw = rows(BatchPlan.RAW)
    assert rows(BatchPlan.WITH_DEAD_LETTERS) == rows(BatchPlan.GROUPED) == raw
    assert len(raw) == len(KEYS[key])


def test_the_plan_depends_on_the_last_batch() -> None:
    def plans(chooser: PlanChooser, *batches: tuple[int, int, bool]) -> list[BatchPlan]:
        taken = [chooser.plan]
        for records, keys, dead_letters in batches:
            chooser.saw(records, keys, dead_letters=dead_letters)
            taken.append(chooser.plan)
        return taken

    few, none, shared, dead = (100, 90, False), (0, 0, False), (100, 50, False), (100, 90, True)
    taken = plans(PlanChooser(can_be_raw=True), few, none, shared, few)
    assert taken == [BatchPlan.GROUPED, BatchPlan.RAW, BatchPlan.RAW, BatchPlan.GROUPED, BatchPlan.RAW]
    assert plans(PlanChooser(can_be_raw=False), few, few) == [BatchPlan.GROUPED] * 3
    taken = plans(PlanChooser(can_be_raw=True), dead, *[few] * DEAD_LETTER_BATCHES)
    assert taken == [BatchPlan.GROUPED, *[BatchPlan.WITH_DEAD_LETTERS] * DEAD_LETTER_BATCHES, BatchPlan.RAW]


@pytest.mark.spark
def test_an_app_changes_its_plan_without_changing_results(spark: SparkSession, tmp_path: Path) -> None:
    """Distinct keys, then shared ones, then records without a key, whose sum would overflow."""
    batches: list[list[tuple[str | None, int]]] = [
        [(f"p{n}", n) for n in range(20)],
        [(f"p{n}", 1) for n in range(20)],
        [(f"p{n % 3}", 1) for n in range(30)],
        [(None, 2**63 - 1), (None, 2**63 - 1), ("p1", 5)],
        [("p2", 7), (None, 1)],
    ]
    for number, records in enumerate(batches):
        write(tmp_path / "input", number, [game(p, n) for p, n in records])
    expected: dict[str, dict[str, int]] = {}
    for player, points in (record for records in batches for record in records):
        if player is not None:
            row = expected.setdefault(player, {"games": 0, "points": 0})
            row["games"], row["points"] = row["games"] + 1, row["points"] + points
    before = {plan: batches_by(plan) for plan in BatchPlan}
    app = points_app(spark, tmp_path)
    assert finish(app) == expected
    assert app.version == len(batches)
    taken = {plan: batches_by(plan) - before[plan] for plan in BatchPlan}
    assert taken == {BatchPlan.GROUPED: 1, BatchPlan.RAW: 2, BatchPlan.WITH_DEAD_LETTERS: 2}


@pytest.mark.spark
def test_a_record_without_a_key_rejects_the_raw_plan(spark: SparkSession, tmp_path: Path) -> None:
    """tests/test_app.py has the same for a grouped batch."""
    own = [game(f"p{n}") for n in range(4)]
    write(tmp_path / "input", 1, own)
    write(tmp_path / "input", 2, [*own, game(None), game(None)])
    before = {each: batches_by(each) for each in BatchPlan}
    assert finish(points_app(spark, tmp_path)) == {f"p{n}": {"games": 2, "points": 2} for n in range(4)}
    letters = [path.read_text() for path in (tmp_path / "base" / "points" / "dead-letters").glob("[0-9]*.json")]
    assert [json.loads(text)["times"] for text in letters] == [2]
    taken = {each: batches_by(each) - before[each] for each in BatchPlan}
    assert taken == {BatchPlan.GROUPED: 1, BatchPlan.RAW: 0, BatchPlan.WITH_DEAD_LETTERS: 1}
