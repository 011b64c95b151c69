"""Batching: orders are collected per shop and sent on when there are ten of them, or every 30 seconds.

    .venv/bin/python examples/batching.py        # writes orders, sends them on in batches, and ends

The buffer is a store, so it survives crashes; an attribute of the processor would be lost with every batch. A batch is
sent on by the record that fills it, or by the punctuator, which is called also when no more orders arrive.
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

FULL = 10
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Order(msgspec.Struct):
    id: str
    cents: int


class Batching(hf.Processor):
    """Sends orders on in batches of ten, and what is left every 30 seconds."""

    waiting = hf.KeyValueStore("waiting-orders", value=list[Order])

    def process(self, key: str, event: Order, ctx: hf.Context) -> None:
        orders = [*self.waiting.get(key, []), event]
        if len(orders) < FULL:
            self.waiting[key] = orders
        else:
            self.send(key, orders, ctx)

    @hf.punctuate(every="30s", time="wall")
    def flush(self, now: int, ctx: hf.Context) -> None:
        for shop, orders in self.waiting.items():
            self.send(shop, orders, ctx)

    def send(self, shop: str, orders: list[Order], ctx: hf.Context) -> None:
        self.waiting.delete(shop)
        ctx.forward(shop, {"orders": len(orders), "cents": sum(order.cents for order in orders)})


def write_orders(folder: Path) -> None:
    """Twelve orders of one shop and three of another."""
    folder.mkdir(parents=True)
    shops = ["tea"] * 12 + ["hats"] * 3
    orders = [
        {"shop": shop, "id": f"o-{n}", "cents": 100 + n, "at": START + timedelta(seconds=n)}
        for n, shop in enumerate(shops)
    ]
    schema = pa.schema(
        [("shop", pa.string()), ("id", pa.string()), ("cents", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
    )
    pq.write_table(pa.Table.from_pylist(orders, schema), folder / "orders.parquet")


def build(spark: SparkSession, folder: Path, sink: hf.Sink, **settings: Any) -> hf.App:
    app = hf.App("batching", settings=hf.Settings(base_dir=str(folder / "holdfast"), **settings), spark=spark)
    orders = spark.readStream.schema("shop string, id string, cents long, at timestamp").parquet(f"{folder}/orders")
    stream = app.stream(orders, key="shop", timestamp="at")
    stream.process(Batching, output="shop string, orders int, cents bigint").sink(sink)
    return app


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_orders(Path(folder, "orders"))
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        batches = hf.memory()
        with build(spark, Path(folder), batches) as app:
            app.process_all_available()
        for row in batches.rows():
            print(row)  # the ten orders that filled a batch; the others wait for the next 30 seconds
