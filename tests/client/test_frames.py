"""Answers as columns: what an instance streams becomes a frame of any kind.

The streams are made here, as `query/arrow.py` and `query/sql.py` make them; the routing is a real one.
"""

import asyncio
from collections.abc import Iterator

import httpx2
import msgspec
import polars
import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import holdfast as hf
from holdfast.client import errors
from holdfast.client.answers import AnswerSource
from holdfast.query.problems import Problem, json_response
from holdfast.query.routes import Routing
from holdfast.query.server import serve
from tests.client.effects import ROUTING

TABLE = pa.table({"n": pa.array(range(1000), pa.int64()), "name": [f"player {n}" for n in range(1000)]})


def streamed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    data: bytes = sink.getvalue().to_pybytes()
    return data


SAID = {
    "holdfast-version": "7",
    "holdfast-committed": "1500",
    "holdfast-consistent": "true",
    "holdfast-role": "standby",
    "holdfast-instances": "game-0,game-1",
}


class Columns:
    """Serves the stream, and notes what was asked."""

    def __init__(self) -> None:
        self.body = streamed(TABLE)
        self.asked: list[object] = []

    async def arrow(self, request: Request) -> Response:
        self.asked.append(dict(request.query_params))
        return Response(self.body, headers=SAID)

    async def sql(self, request: Request) -> Response:
        parameters = dict(request.query_params)
        self.asked.append((request.headers["accept"], parameters, msgspec.json.decode(await request.body())))
        if b"DROP" in await request.body():
            return Problem(400, "sql_refused", "It isn't a SELECT.", "docs/sql.md").response()
        return Response(self.body, headers={"holdfast-version": "7", "holdfast-more": "true"})


@pytest.fixture
def columns() -> Columns:
    return Columns()


@pytest.fixture
def address(columns: Columns) -> Iterator[str]:
    async def routing(request: Request) -> Response:
        here = Routing(app="game", version=7, stores=ROUTING.stores, instances={"a": server.url}, tasks={"0_0": ("a",)})
        return json_response(here)

    routes = [
        Route("/v1/routing", routing),
        Route("/v1/stores/numbers/arrow", columns.arrow),
        Route("/v1/sql", columns.sql, methods=["POST"]),
    ]
    with serve(Starlette(routes=routes), port=0) as server:
        yield server.url


def test_a_store_becomes_a_frame_of_any_kind(columns: Columns, address: str) -> None:
    with hf.Client(address) as client:
        frame = client.store("numbers").dataframe(["n", "name"], at=7)
    assert columns.asked == [{"columns": "n,name", "at": "7", "wait": "2s"}]
    source = AnswerSource(version=7, committed=1500, role="standby", instances=("game-0", "game-1"))
    assert frame.source == source
    assert frame.arrow == TABLE and (frame.version, frame.more, len(frame)) == (7, False, 1000)
    assert frame.pandas().equals(TABLE.to_pandas())
    assert frame.polars().equals(polars.DataFrame(TABLE)) and polars.DataFrame(frame).equals(frame.polars())
    assert frame.rows()[999] == {"n": 999, "name": "player 999"}


def test_a_statement_has_a_frame(columns: Columns, address: str) -> None:
    async def asked() -> int:
        async with hf.AsyncClient(address) as client:
            assert (await client.sql("SELECT 2", at="latest")).more
            return len(await client.sql("SELECT 1", limit=5, at=3))

    with hf.Client(address) as client:
        assert client.sql("SELECT * FROM numbers").more
        client.sql("SELECT 2", at="latest")
        with pytest.raises(errors.SqlRefused, match="isn't a SELECT"):
            client.sql("DROP TABLE numbers")
    assert asyncio.run(asked()) == 1000
    arrow = "application/vnd.apache.arrow.stream"
    assert columns.asked[0] == (arrow, {}, {"sql": "SELECT * FROM numbers"})
    latest = (arrow, {"at": "latest", "wait": "2s"}, {"sql": "SELECT 2"})
    assert (columns.asked[1], columns.asked[-2]) == (latest, latest)
    assert columns.asked[-1] == (arrow, {"at": "3", "wait": "2s"}, {"sql": "SELECT 1", "limit": 5})


def test_columns_take_the_options_of_every_read(columns: Columns, address: str) -> None:
    fresh = {"require": "active", "max_lag": "5s", "at_least": "3", "wait": "1s"}
    with hf.Client(address) as client:
        client.store("numbers").dataframe(require="active", max_lag="5s", at_least=3, wait="1s", timeout="20s")
        client.sql("SELECT 1", require="active", max_lag="5s", at_least=3, wait="1s", hedge="5s")
        client.store("numbers").dataframe()
        client.store("numbers").dataframe(timeout="1s")
        client.sql("SELECT 1", at="latest", timeout="1s")
    arrow = "application/vnd.apache.arrow.stream"
    short = {"at": "latest", "wait": "400ms"}  # which leaves time for the answer
    assert columns.asked == [
        {**fresh, "at": "latest"},
        (arrow, fresh, {"sql": "SELECT 1"}),
        {"at": "latest", "wait": "2s"},
        short,
        (arrow, short, {"sql": "SELECT 1"}),
    ]


def test_a_stream_that_was_cut_off_is_no_frame(columns: Columns, address: str) -> None:
    columns.body = columns.body[:-8]
    with hf.Client(address) as client:
        with pytest.raises(errors.BadAnswer, match="without an end"):
            client.store("numbers").dataframe()


def test_a_connection_that_is_lost_is_asked_for_again(
    columns: Columns, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True])
    received = httpx2.Response.iter_bytes

    def cut(self: httpx2.Response) -> Iterator[bytes]:
        for part in received(self):
            if "arrow" in str(self.url) and next(lost, False):
                raise httpx2.RemoteProtocolError("cut off")
            yield part

    monkeypatch.setattr(httpx2.Response, "iter_bytes", cut)
    with hf.Client(address) as client:
        assert len(client.store("numbers").dataframe()) == 1000
    assert len(columns.asked) == 2
