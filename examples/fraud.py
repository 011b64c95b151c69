"""Fraud counts: an account with more than three payments within ten minutes is suspect.

    .venv/bin/python examples/fraud.py           # reads examples/data/payments, prints the suspects, and ends

The ten minutes may be any ten minutes, so the windows are sliding ones: there is one that ends with each payment. A
tumbling window would miss a burst that lies on both sides of its edge.

    a-2     ●   ●      ●   ●                   four payments from 9:00:30 to 9:09:00
            ├──────────────┤ 10 minutes        suspect
    a-1     ●      ●            ●        ●     at most two within ten minutes
"""

import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf

PAYMENTS = "account string, cents int, at timestamp"
ALLOWED = 3


def build(app: hf.App, payments: Any) -> hf.Table:
    """The topology, of a streaming DataFrame or of the records of a test."""
    counts = (
        app.stream(payments, key="account", timestamp="at", name="payments")
        .group_by()
        .window(hf.sliding("10m", grace="1m"))
        .aggregate(payments=hf.count(), cents=hf.sum("cents"))
        .store("payments-in-10m", retention="1h")  # GET /v1/stores/payments-in-10m/windows/a-1
    )
    return (
        counts.to_stream()  # a row when a window has changed
        .where(f"payments > {ALLOWED}")
        .group_by()
        .aggregate(payments=hf.max("payments"), cents=hf.max("cents"))
        .store("suspects")  # GET /v1/stores/suspects/keys/a-2
    )


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    payments = spark.readStream.schema(PAYMENTS).json(str(Path(__file__).parent / "data" / "payments"))
    with tempfile.TemporaryDirectory() as folder:
        app = hf.App("fraud", settings=hf.Settings(base_dir=folder), spark=spark)
        suspects = hf.memory()
        build(app, payments).sink(suspects)
        with app:
            app.process_all_available()
        for row in suspects.rows():
            print(f"{row['account']}: {row['payments']} payments of {row['cents']} cents within ten minutes")


if __name__ == "__main__":
    main()
