"""The paths under /v1: requests as calls of the reader, and results as JSON.

Every answer has the version it is from. Lookups in a replica of this process are done on the event loop, since they
take microseconds; everything that waits (ranges, other instances) runs on a thread.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import RESTORE_AGAIN, HoldfastError
from holdfast.query import rewrite_progress
from holdfast.query.cursor import Cursor, encode_cursor
from holdfast.query.health import AppStateInfo, health_routes
from holdfast.query.keytext import example, key_text, parse_key, render_key
from holdfast.query.problems import Problem, answer_problem, json_response, problem_of
from holdfast.query.queries import Asked, Kinds
from holdfast.query.reader import Lookup, LookupResult, Page, StoreReader
from holdfast.query.render import Renderer, answered, renderer
from holdfast.query.requests import bounds_of, cursor_of, key_in_path, limit_of, parameters
from holdfast.stores.formats.cells import FIRST_SCHEMA, NEVER, NO_TIMESTAMP, Cell
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.without_code import newest_fields
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.words import Version

_LIMITS = ("ttl_ms", "retention_ms", "max_entries")
"""What bounds a store, shown where it has any."""

_requests = metrics.counter("holdfast_rest_requests", "REST requests by path and status.", ["path", "status"])
_seconds = metrics.histogram("holdfast_rest_request_seconds", "How long REST requests took.", ["path"])

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(reader: StoreReader, state: Callable[[], AppStateInfo]) -> Starlette:
    """The ASGI application."""
    kinds = Kinds(reader.specs.all())
    queries = _Endpoints(reader, state, kinds)
    paths: Mapping[str, Endpoint] = {
        "/v1/stores": queries.stores,
        "/v1/stores/{store}/keys/{key:path}": queries.key,
        "/v1/stores/{store}/range": queries.range,
        "/v1/stores/{store}/rewriting": queries.rewriting,
        **{f"/v1/stores/{{store}}/{name}/{{key:path}}": queries.query(name) for name in sorted(kinds.names())},
        "/v1/stores/{store}/{query}/{key:path}": queries.query(None),
        "/v1/state": queries.state,
    }
    app = Starlette(
        routes=[
            *(Route(path, _counted(path, endpoint)) for path, endpoint in paths.items()),
            *health_routes(reader, state),
        ],
        exception_handlers=dict.fromkeys((Problem, HoldfastError, HTTPException, Exception), answer_problem),
    )
    app.router.redirect_slashes = False  # a key may end with a slash
    return app


class _Endpoints:
    """The endpoints under /v1, as Starlette calls them."""

    def __init__(self, reader: StoreReader, state: Callable[[], AppStateInfo], kinds: Kinds) -> None:
        self._reader = reader
        self._specs = reader.specs
        self._kinds = kinds
        self._state = state
        self._renderers: dict[str, tuple[StoreSpec, Renderer]] = {}

    async def stores(self, request: Request) -> Response:
        parameters(request, allowed=())
        described = [self._describe(spec) for spec in self._specs.all()]
        return json_response({"version": self._state().version, "stores": described})

    async def state(self, request: Request) -> Response:
        parameters(request, allowed=())
        return json_response(self._state())

    async def key(self, request: Request) -> Response:
        parameters(request, allowed=())
        spec = self._specs[request.path_params["store"]]
        self._kinds.check_by_key(spec)
        values = parse_key(spec.key, key_in_path(request, spec.key))
        lookup = self._reader.find(spec.name, values)
        found = self._reader.get(lookup) if lookup.local else await asyncio.to_thread(self._reader.get, lookup)
        if found.cell is None and spec.value.by_processor:  # it may be under the key of another partition
            found = await asyncio.to_thread(self._reader.search, lookup, found)
        if found.cell is not None and self._specs.is_unknown_schema(spec.name, found.cell.schema):
            await asyncio.to_thread(self._specs.load_schema, spec.name, found.cell.schema)
        return self._answer(lookup, found, values)

    async def rewriting(self, request: Request) -> Response:
        parameters(request, allowed=())
        spec = self._specs[request.path_params["store"]]
        parts = await asyncio.to_thread(self._reader.read, spec.name, rewrite_progress.read)
        return json_response(rewrite_progress.summary(spec, parts))

    def query(self, name: str | None) -> Endpoint:
        """The endpoint of a query that a kind declares; without a name, of the query that the path names."""

        async def answer(request: Request) -> Response:
            spec = self._specs[request.path_params["store"]]
            query = self._kinds.query(spec, name or request.path_params["query"])
            given = parameters(request, allowed=(*query.parameters, "limit"))
            limit = limit_of(given.get("limit"))
            asked = Asked(self._kinds, spec, query, key_in_path(request, spec.key), given)
            read = asked.reader(functools.partial(self._specs.at, spec.name), limit)

            def answered() -> Response:
                parts = self._reader.read(spec.name, read)
                found = asked.merged(parts)
                body = {"store": spec.name, "key": render_key(asked.key_schema, asked.key), query.name: found[:limit]}
                versions = {part.version for part in parts}
                where = {
                    "more": len(found) > limit,
                    "version": min(versions),
                    "consistent": len(versions) == 1,
                    "tasks": [str(part.task) for part in parts if part.entries],
                }
                return json_response({**body, **where})

            return await asyncio.to_thread(answered)

        return answer

    async def range(self, request: Request) -> Response:
        spec = self._specs[request.path_params["store"]]
        given = parameters(request, allowed=("from", "to", "limit", "cursor"))
        self._kinds.check_by_key(spec)
        limit = limit_of(given.get("limit"))
        start, stop = bounds_of(spec, given)
        cursor = None
        if "cursor" in given:
            cursor = cursor_of(spec, given["cursor"], start if "from" in given else None, stop)
            start, stop = cursor.start, cursor.stop

        def read() -> Response:
            page = self._reader.range(
                spec.name,
                start if cursor is None else cursor.next_start,
                stop,
                limit=limit,
                version=None if cursor is None else Version(cursor.version),
            )
            return self._answer_page(spec, page, start, stop, cursor)

        return await asyncio.to_thread(read)

    def _describe(self, spec: StoreSpec) -> dict[str, object]:
        return {
            "store": spec.name,
            "kind": spec.kind,
            "key": str(spec.key),
            "example_key": example(spec.key),
            "value": str(spec.value.shown) if isinstance(spec.value, RowValues) else newest_fields(spec.schemas),
            "codec": spec.codec,
            "engine": spec.engine,
            "partitions": spec.partitions(self._reader.app.partitions),
            **{name: limit for name in _LIMITS if (limit := getattr(spec, name))},
            **dict(spec.fixed),
            **dict(spec.options),
            **({"schema": spec.schema} if spec.schema > FIRST_SCHEMA else {}),
            **({"aggregates": dict(spec.aggregates)} if spec.aggregates else {}),
            **({} if spec.durable else {"durable": False}),
            **({"everywhere": True} if spec.everywhere else {}),
        }

    def _answer(self, lookup: Lookup, found: LookupResult, values: Sequence[object]) -> Response:
        store, text = lookup.spec.name, key_text(lookup.spec.key, values)
        where = {"version": found.version, "task": str(found.task)}
        if found.cell is None:
            raise Problem(
                404,
                "key_not_found",
                f"Store {store!r} has no key {text[:200]!r} at version {found.version}.",
                f"Check the key, or see which there are: /v1/stores/{store}/range?limit=10"
                if found.version
                else "No batch is committed yet. Ask again when /v1/state shows version 1 or later.",
                {"store": store, "key": render_key(lookup.spec.key, values), **where},
            )
        try:
            shown = _shown(self._renderer(store), found.cell)
        except HoldfastError as error:
            raise _unreadable(store, text, error) from error
        return json_response({"store": store, "key": render_key(lookup.spec.key, values), **shown, **where})

    def _answer_page(
        self, spec: StoreSpec, page: Page, start: bytes, stop: bytes | None, cursor: Cursor | None
    ) -> Response:
        body: dict[str, object] = {
            "store": spec.name,
            "version": page.version,
            "consistent": page.consistent,
            "entries": [self._entry(spec, key, value) for key, value in page.entries],
            "cursor": None,
        }
        if page.more:
            body["cursor"] = encode_cursor(Cursor(spec.name, start, stop, page.entries[-1][0], page.version))
        if cursor is not None:
            body["moved_on"] = page.version != cursor.version
        return json_response(body)

    def _entry(self, spec: StoreSpec, key: bytes, value: bytes) -> dict[str, object]:
        """One entry of a page. An entry that can't be read has an `error`, and the others are shown."""
        try:
            shown_key = render_key(spec.key, decode_key(spec.key, key))
        except (HoldfastError, ValueError, OverflowError) as error:
            return {"key": None, "value": None, "error": f"key {key.hex()} can't be read: {error}"}
        try:
            cell = layout_of(spec).cell(value)
            self._specs.load_schema(spec.name, cell.schema)
            return {"key": shown_key, **_shown(self._renderer(spec.name), cell)}
        except HoldfastError as error:
            return {"key": shown_key, "value": None, "error": _unreadable(spec.name, str(shown_key), error).message}

    def _renderer(self, store: str) -> Renderer:
        """How the store's values are shown, by its newest known spec."""
        spec = self._specs[store]
        known = self._renderers.get(store)
        if known is None or known[0] is not spec:
            known = self._renderers[store] = (spec, renderer(spec))
        return known[1]


def _counted(path: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint, with its requests counted and timed."""
    path = path.replace(":path", "")
    seconds = _seconds.labels(path)

    async def answer(request: Request) -> Response:
        began = SYSTEM_CLOCK.monotonic()
        status = 500
        try:
            response = await endpoint(request)
            status = response.status_code
        except Exception as error:
            status = problem_of(error).status
            raise
        finally:
            seconds.observe(SYSTEM_CLOCK.monotonic() - began)
            _requests.labels(path, str(status)).inc()
        return response

    return answer


def _shown(render: Renderer, cell: Cell) -> dict[str, object]:
    """A value with its timestamp and expiry, in milliseconds since 1970, where it has them."""
    shown = answered(render(cell.payload, cell.schema))
    if cell.timestamp != NO_TIMESTAMP:
        shown["timestamp"] = cell.timestamp
    if cell.expires != NEVER:
        shown["expires"] = cell.expires
    return shown


def _unreadable(store: str, key: str, error: Exception) -> Problem:
    return Problem(
        500,
        "damaged_data",
        f"The value of {key[:200]!r} in store {store!r} can't be read: {error}",
        f"Nothing you sent is at fault. {RESTORE_AGAIN}",
    )
