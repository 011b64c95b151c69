"""Mail delivery: which mail of a customer is still on its way. Mail that was delivered is dropped.

    .venv/bin/python examples/mail_delivery.py   # writes what happened to mail, prints what is on its way, and ends

The value of a customer is made by a Python function, one record at a time. A customer without mail takes no room: the
function then returns None, which deletes the key.

    ann     posted m-1    posted m-2    delivered m-1    delivered m-2
    store   {m-1}         {m-1, m-2}    {m-2}            (no ann)
"""

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import holdfast as hf

MAIL = "customer string, id string, subject string, delivered boolean, at timestamp"
DAYS = [
    [
        {"customer": "ann", "id": "m-1", "subject": "invoice", "delivered": False, "at": "2026-01-01T08:00:00Z"},
        {"customer": "bob", "id": "m-2", "subject": "catalogue", "delivered": False, "at": "2026-01-01T08:00:05Z"},
        {"customer": "ann", "id": "m-3", "subject": "parcel", "delivered": False, "at": "2026-01-01T08:00:10Z"},
    ],
    [
        {"customer": "ann", "id": "m-1", "delivered": True, "at": "2026-01-02T09:30:00Z"},
        {"customer": "bob", "id": "m-2", "delivered": True, "at": "2026-01-02T09:40:00Z"},
    ],
]


class Mail(msgspec.Struct):
    """The columns that the function uses."""

    id: str
    subject: str | None
    delivered: bool


def on_its_way(waiting: dict[str, str], mail: Mail) -> dict[str, str] | None:
    """The subjects of a customer's undelivered mail by id."""
    others = {id: subject for id, subject in waiting.items() if id != mail.id}
    if mail.delivered:
        return others or None
    return {**others, mail.id: mail.subject or ""}


def build(app: hf.App, mail: Any) -> hf.ReducedTable:
    """The topology, of a streaming DataFrame or of the records of a test."""
    stream = app.stream(mail, key="customer", timestamp="at", name="mail")
    return stream.group_by().aggregate_with(dict, on_its_way, value=dict[str, str]).store("undelivered")


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "mail")
        source.mkdir()
        app = hf.App("mail", settings=hf.Settings(base_dir=folder), spark=spark)
        build(app, spark.readStream.schema(MAIL).json(str(source)))
        with app:
            for day, mail in enumerate(DAYS, start=1):
                Path(source, f"{day}.json").write_text("\n".join(map(json.dumps, mail)))
                app.process_all_available()
                with urllib.request.urlopen(f"{app.address}/v1/stores/undelivered/range") as answer:
                    print(f"day {day}:", {each["key"]: each["value"] for each in json.load(answer)["entries"]})


if __name__ == "__main__":
    main()
