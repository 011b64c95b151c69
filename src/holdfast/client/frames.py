"""Whole stores and results of SQL as columns: an Arrow IPC stream in, a data frame of the user's choice out.

No value becomes a Python object on the way, and the columns are those of the received bytes, without a copy.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.client.answers import AnswerSource
from holdfast.client.core import Core, path
from holdfast.client.effects import Flow, Reply, Request
from holdfast.client.errors import BadAnswer, BadParameter
from holdfast.client.keys import query_string
from holdfast.client.options import parameters_of

if TYPE_CHECKING:
    import polars

ARROW: Final = "application/vnd.apache.arrow.stream"
SECONDS: Final = 60.0
"""The time of a call, unless it is given: such an answer may have a gigabyte."""
ARROW_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of a stream. Without them it was cut off."""


class Frame:
    """Rows as columns, all of one version. Anything that reads Arrow takes it as it is: `polars.DataFrame(frame)`."""

    def __init__(self, table: pa.Table, source: AnswerSource | None, *, more: bool) -> None:
        self.arrow = table
        self.source = source
        """None for a statement that reads no store."""
        self.more = more
        """Whether rows were left out because of a limit."""

    @property
    def version(self) -> int | None:
        """None for a statement that reads no store."""
        return None if self.source is None else self.source.version

    def pandas(self) -> Any:
        """A pandas.DataFrame."""
        return self.arrow.to_pandas()

    def polars(self) -> "polars.DataFrame":
        import polars

        return polars.DataFrame(self.arrow)

    def rows(self) -> list[dict[str, Any]]:
        """One dict per row."""
        found: list[dict[str, Any]] = self.arrow.to_pylist()
        return found

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        columns = ", ".join(self.arrow.column_names)
        return f"Frame({len(self):,} rows of {columns}, version={self.version})"


def of_store(core: Core, store: str, columns: Sequence[str], options: Mapping[str, Any]) -> Flow[Frame]:
    """All entries of a store, or some of its columns."""
    if isinstance(columns, str):  # a sequence too: each of its characters would be a column
        raise BadParameter(f"columns={columns!r:.200} is a text.", f"Give a list: [{columns!r:.200}].", 400)
    deadline, options = core.deadline(options, SECONDS), core.settled({"at": "latest", **options}, SECONDS)
    wanted = [("columns", ",".join(columns))] if columns else []
    request = Request(path(store, "arrow", [*wanted, *parameters_of(options).items()]), headers={"accept": ARROW})
    yield from core.keys(
        store, core.deadline(options)
    )  # a store that isn't there is an error with the names of those that are
    reply = yield from core.asker.ask(core.question(request, options, deadline, large=True))
    return _frame(reply)


def of_statement(core: Core, statement: str, limit: int | None, options: Mapping[str, Any]) -> Flow[Frame]:
    """The result of one SELECT."""
    options = core.settled(options, SECONDS)
    body = msgspec.json.encode({"sql": statement, **({} if limit is None else {"limit": limit})})
    target = f"/v1/sql{query_string([*parameters_of(options).items()])}"
    request = Request(target, "POST", body, {"accept": ARROW, "content-type": "application/json"})
    yield from core.asker.routing(core.deadline(options))  # where no instance answers, the long time isn't waited for
    question = core.question(request, options, core.deadline(options, SECONDS), large=True)
    return _frame((yield from core.asker.ask(question)))


def _frame(reply: Reply) -> Frame:
    if not reply.body.endswith(ARROW_END):
        raise BadAnswer(reply.address, reply.status, "an Arrow stream without an end")
    with pa.ipc.open_stream(reply.body) as stream:
        table = stream.read_all()
    more = reply.headers.get("holdfast-more") == "true"
    return Frame(table, AnswerSource.of_headers(reply.headers), more=more)
