"""REST: the table of operations as an ASGI application.

Each feature lists its operations in a module of its own; here they become routes, in this order, and the OpenAPI
document. Requests are counted and timed by path, in front of all of it.
"""

import difflib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from holdfast.errors import HoldfastError
from holdfast.query.access import guarded
from holdfast.query.addressed import Addressed
from holdfast.query.arrow import ArrowEndpoints
from holdfast.query.columns import ColumnReader
from holdfast.query.documents import document_operations
from holdfast.query.health import AppStateInfo, health_operations
from holdfast.query.key_answers import KeyAnswers, KeysFirst
from holdfast.query.kind_endpoints import KindEndpoints
from holdfast.query.leaderboard_endpoints import LeaderboardEndpoints
from holdfast.query.limits import Limited
from holdfast.query.measured import MeasuredApp
from holdfast.query.measuring import LOOKUPS, NO_PATH, REQUESTS
from holdfast.query.operations import Operation
from holdfast.query.own_documents import OwnDocument
from holdfast.query.own_endpoints import OwnEndpoints
from holdfast.query.problems import Problem, answer_problem, no_such_path
from holdfast.query.queries import Kinds
from holdfast.query.range_endpoints import RangeEndpoints
from holdfast.query.reader import StoreReader
from holdfast.query.routes import Places
from holdfast.query.routing import NOWHERE, routing_operations
from holdfast.query.showing import Showing
from holdfast.query.sql import SqlEndpoint
from holdfast.query.store_endpoints import StoreEndpoints
from holdfast.query.watch import Watches
from holdfast.settings.rest import RestSettings
from holdfast.settings.sql import SqlSettings
from holdfast.sql.workers import Workers

_DEFAULTS = RestSettings()
_LONGEST = 200
"""Characters of a path that are compared with the paths that there are."""
_TEMPLATE = "holdfast.template"
"""In the scope of a request: the path of its operation."""


def create_app(
    reader: StoreReader,
    state: Callable[[], AppStateInfo],
    *,
    places: Callable[[], Places] = lambda: NOWHERE,
    watches: Watches | None = None,
    workers: Workers | None = None,
    quick: bool = True,
    settings: RestSettings = _DEFAULTS,
    closing: ExitStack | None = None,
) -> ASGIApp:
    """The ASGI application. Without `quick`, the endpoints answer every request; only tests need that.

    `closing` gets what has to be closed after the last request: the threads of the user's own endpoints.
    """
    kinds, showing = Kinds(reader.specs.all()), Showing(reader.specs)
    operations = operations_of(
        reader,
        state,
        kinds,
        showing,
        places=places,
        watches=watches,
        workers=workers,
        own_document=lambda scope: own.document(scope),  # noqa: PLW0108  it is made below
    )
    paths = [(operation.template, _route(operation)) for operation in operations]
    app = Starlette(
        routes=[route for _, route in paths],
        exception_handlers={
            **dict.fromkeys((Problem, HoldfastError, HTTPException, Exception), answer_problem),
            404: _nothing_there(operations, lambda scope: own.paths(scope)),  # noqa: PLW0108  as above
        },
    )
    app.router.redirect_slashes = False  # a key may end with a slash
    own = OwnEndpoints(reader, kinds, app)
    if closing is not None:
        closing.callback(own.close)
    limited, keys = Limited(own, settings), KeyAnswers(reader, kinds, showing.renderer)
    quickly = KeysFirst(keys, limited, REQUESTS.observer(LOOKUPS))
    addressed = Addressed(quickly if quick else limited, lambda: reader.app)

    def path_of(scope: Scope) -> str:
        if (path := scope.get(_TEMPLATE)) is not None:
            return str(path)
        return own.path_of(scope) or next((each for each, route in paths if _is_at(route, scope)), NO_PATH)

    return MeasuredApp(guarded(addressed, settings, own.needs), path_of)


def operations_of(
    reader: StoreReader,
    state: Callable[[], AppStateInfo],
    kinds: Kinds,
    showing: Showing,
    *,
    places: Callable[[], Places],
    watches: Watches | None,
    own_document: Callable[[Scope], OwnDocument],
    workers: Workers | None = None,
) -> list[Operation]:
    """All operations, in the order in which a path is compared with theirs."""
    columns = ColumnReader(reader)
    operations = [
        *StoreEndpoints(reader, state, kinds, showing).operations(),
        *RangeEndpoints(reader, kinds, showing).operations(),
        *LeaderboardEndpoints(reader, showing).operations(),
        *ArrowEndpoints(columns).operations(),
        *SqlEndpoint(columns, workers or Workers(SqlSettings())).operations(),
        *(() if watches is None else watches.operations()),
        *KindEndpoints(reader, kinds).operations(),
        *routing_operations(reader, state, places),
        *health_operations(reader, state),
    ]
    return [*operations, *document_operations(reader, operations, own_document)]


def _nothing_there(
    operations: Sequence[Operation], own: Callable[[Scope], Sequence[str]]
) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answers for paths that neither an operation has nor one of the user's own endpoints."""
    listed = {operation.template: operation.shown for operation in operations if operation.listed}

    async def answer(request: Request, error: Exception) -> Response:
        shown = {**listed, **{path: path for path in own(request.scope)}}
        near = difflib.get_close_matches(request.url.path[:_LONGEST], shown, n=3, cutoff=0.5)
        return no_such_path([shown[path] for path in near]).response()

    return answer


def _is_at(route: Route, scope: Scope) -> bool:
    return route.matches(scope)[0] is not Match.NONE


def _route(operation: Operation) -> Route:
    """The operation as a route, with its requests checked."""

    async def answer(request: Request) -> Response:
        request.scope[_TEMPLATE] = operation.template
        return await operation.endpoint(operation.call(request))

    return Route(operation.path, answer, methods=[operation.method])
