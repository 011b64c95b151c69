"""Digital twins of wind turbines: what each one should do, what it reports, and which ones have fallen silent.

    .venv/bin/python examples/wind_turbines.py   # writes messages of two turbines, prints their twins, and ends

A twin has a desired state, which people set, and a reported state, which the turbine sends. When the two differ, the
desired state is sent to the turbine. A turbine that has reported nothing for five minutes of the wall clock is silent:
a punctuator finds it, also when no message of any turbine arrives.
"""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf

SILENT_MS = 5 * 60_000
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Message(msgspec.Struct):
    """From a person, `desired`, or from a turbine, `reported`: whether it should run, or runs."""

    kind: str
    power: str


class Twin(msgspec.Struct, frozen=True):
    desired: str | None = None
    reported: str | None = None
    heard: int = 0
    """When the turbine last reported, by the wall clock."""
    silent: bool = False


class Twins(hf.Processor):
    """Keeps the twin of each turbine."""

    twins = hf.KeyValueStore("twins", value=Twin)

    def process(self, key: str, event: Message, ctx: hf.Context) -> None:
        twin = self.twins.get(key, Twin())
        if event.kind == "desired":
            twin = msgspec.structs.replace(twin, desired=event.power)
        else:
            if twin.silent:
                ctx.forward(key, {"event": "back"}, to="alerts")
            twin = msgspec.structs.replace(twin, reported=event.power, heard=ctx.now.wall, silent=False)
        self.twins[key] = twin
        if twin.desired is not None and twin.desired != twin.reported:
            ctx.forward(key, {"power": twin.desired})

    @hf.punctuate(every="1m", time="wall")
    def find_silent(self, now: int, ctx: hf.Context) -> None:
        for turbine, twin in self.twins.items():
            if twin.reported is not None and not twin.silent and twin.heard <= now - SILENT_MS:
                self.twins[turbine] = msgspec.structs.replace(twin, reported=None, silent=True)
                ctx.forward(turbine, {"event": "silent"}, to="alerts")


def write_messages(folder: Path) -> None:
    folder.mkdir(parents=True)
    messages = [
        ("t-1", "reported", "off"),
        ("t-1", "desired", "on"),
        ("t-2", "reported", "on"),
        ("t-1", "reported", "on"),
    ]
    rows = [
        {"turbine": turbine, "kind": kind, "power": power, "at": START + timedelta(seconds=n)}
        for n, (turbine, kind, power) in enumerate(messages)
    ]
    schema = pa.schema(
        [("turbine", pa.string()), ("kind", pa.string()), ("power", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "messages.parquet")


def build(spark: SparkSession, folder: Path, commands: hf.Sink, alerts: hf.Sink, **settings: Any) -> hf.App:
    app = hf.App("turbines", settings=hf.Settings(base_dir=str(folder / "holdfast"), **settings), spark=spark)
    columns = "turbine string, kind string, power string, at timestamp"
    messages = spark.readStream.schema(columns).parquet(f"{folder}/messages")
    twins = app.stream(messages, key="turbine", timestamp="at").process(
        Twins, output="turbine string, power string", outputs={"alerts": "turbine string, event string"}
    )
    twins.sink(commands)
    twins.output("alerts").sink(alerts)
    return app


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_messages(Path(folder, "messages"))
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        commands, alerts = hf.memory(), hf.memory()
        with build(spark, Path(folder), commands, alerts) as app:
            app.process_all_available()
        print("commands:", list(commands.rows()))
