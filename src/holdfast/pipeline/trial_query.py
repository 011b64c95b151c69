"""A trial of the streaming query, by a start that would take over from a driver that may be running.

Spark checks much of a query only when it runs it: whether its operators can stream, the options of its sources, whether
the sources exist and answer. If the app's own query failed there, after the takeover, nobody would run the app. So the
start first runs the same query with a checkpoint in a temporary folder, until all sources have told their positions. It
reads no records, and no batch of it ends: after one, a source may delete or archive its files.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from holdfast.errors import ErrorCategory, HoldfastError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_SECONDS = 0.02
_HAS_POSITIONS = ("Waiting for", "Writing offsets", "Processing")
"""How Spark's status begins once the sources have told their positions."""


class QueryRefused(HoldfastError):
    """Spark can't run the app's streaming query."""

    category = ErrorCategory.INVALID

    def __init__(self, error: BaseException) -> None:
        text = str(error).partition("\n=== Streaming Query ===")[0].strip()
        super().__init__(
            f"Spark can't run the streaming query of this app: {text} Nothing was changed, and a driver of the app "
            "that runs goes on. Fix the source or the query, and start again."
        )


def check_query(frame: DataFrame, pause: Callable[[float], None]) -> None:
    """Runs a trial of the query that reads this frame, and raises QueryRefused if it fails.

    `pause` waits, and raises when the app is asked to stop.
    """
    jvm: Any = frame.sparkSession.sparkContext._jvm
    has_batch = threading.Event()

    def never_ending(batch: DataFrame, number: int) -> None:
        has_batch.set()
        jvm.java.lang.Thread.sleep(1 << 40)  # in Spark's own thread, until `stop` interrupts it

    with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as folder:
        writer = frame.writeStream.option("checkpointLocation", f"file://{folder}").foreachBatch(never_ending)
        try:
            query = writer.start()
        except PySparkException as error:
            raise QueryRefused(error) from error
        try:
            while query.isActive and not has_batch.is_set() and not _has_positions(query):
                pause(_LOOK_SECONDS)
            failure = query.exception()
        finally:
            query.stop()
    if failure is not None:
        raise QueryRefused(failure) from failure


def _has_positions(query: StreamingQuery) -> bool:
    return str(query.status["message"]).startswith(_HAS_POSITIONS)
