"""A processor over four stores: what each user does in a chat application, in four forms.

    .venv/bin/python examples/conversations.py   # writes messages of two users, prints what the stores have, and ends

- `user-sessions`: the current session of each user, which ends after half an hour without a message
- `metrics`: messages per user and window of 5 minutes, kept for 7 days
- `conversations`: messages less than 2 hours apart are one conversation
- `audit`: one entry per message, by its own id, kept for 30 days

`conversation_endpoints.py` answers paths of its own from them.

The key of the audit trail is not the key of the stream, so it is declared with `other_key=True`: an entry is in the
partition of the user who sent the message.
"""

import importlib
import tempfile
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf

WINDOW_MS = 5 * 60_000
SESSION_MS = 30 * 60_000
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Message(msgspec.Struct):
    id: str
    text: str


class UserSession(msgspec.Struct, frozen=True):
    started: int
    last: int
    messages: int = 0


class Audited(msgspec.Struct, frozen=True):
    user: str
    at: int
    characters: int


class Chat(hf.Processor):
    """Keeps sessions, metrics, conversations and an audit trail up to date, all or nothing per message."""

    sessions = hf.KeyValueStore("user-sessions", value=UserSession, ttl="90d")
    metrics = hf.WindowStore("metrics", value=int, size="5m", retention="7d")
    conversations = hf.SessionStore("conversations", value=int, gap="2h")
    audit = hf.KeyValueStore("audit", value=Audited, ttl="30d", other_key=True)

    def process(self, key: str, event: Message, ctx: hf.Context) -> None:
        if event.id in self.audit:
            ctx.count("sent twice")
            return
        session = self.sessions.get(key)
        if session is None or ctx.timestamp - session.last > SESSION_MS:
            session = UserSession(ctx.timestamp, ctx.timestamp)
        self.sessions[key] = UserSession(session.started, max(session.last, ctx.timestamp), session.messages + 1)
        window = ctx.timestamp // WINDOW_MS * WINDOW_MS
        self.metrics.put(key, (self.metrics.fetch(key, window) or 0) + 1, window)
        self.conversations.merge(key, ctx.timestamp, None, lambda one, other: one + other, 1)
        self.audit[event.id] = Audited(key, ctx.timestamp, len(event.text))


def write_messages(folder: Path) -> None:
    """Ann talks for an hour and again in the evening; one of her messages comes twice."""
    folder.mkdir(parents=True)
    said = [("ann", "m-1", 0), ("ann", "m-2", 3), ("bob", "m-3", 4), ("ann", "m-2", 5), ("ann", "m-4", 50)]
    said += [("ann", "m-5", 500)]
    rows = [
        {"user": user, "id": id, "text": f"this is {id}", "at": START + timedelta(minutes=minute)}
        for user, id, minute in said
    ]
    schema = pa.schema(
        [("user", pa.string()), ("id", pa.string()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "messages.parquet")


def build(spark: SparkSession, folder: Path, **settings: Any) -> hf.App:
    app = hf.App("chat", settings=hf.Settings(base_dir=str(folder / "holdfast"), **settings), spark=spark)
    columns = "user string, id string, text string, at timestamp"
    messages = spark.readStream.schema(columns).parquet(f"{folder}/messages")
    # A message that can't be processed is kept, and leaves nothing in any of the four stores.
    app.stream(messages, key="user", timestamp="at").process(Chat, on_error="dead_letter")
    # Instances import endpoints by the name of their module, which the main program doesn't have.
    endpoints = importlib.import_module("conversation_endpoints")
    app.serve(endpoints.session, endpoints.windows, endpoints.audited)
    return app


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_messages(Path(folder, "messages"))
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        with build(spark, Path(folder)) as app:
            app.process_all_available()
            for path in ("users/ann/session", "metrics/ann/windows?hours=9", "audit/m-3"):
                with urllib.request.urlopen(f"{app.address}/api/state/{path}") as answer:
                    print(path, answer.read().decode())
            with urllib.request.urlopen(f"{app.address}/v1/stores/conversations/sessions/ann") as answer:
                print("conversations", answer.read().decode())


if __name__ == "__main__":
    main()
