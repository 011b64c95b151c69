"""Endpoints of the user's own, as the app file has them: imported by their places, and run on threads of their own.

They are found by their paths in front of Holdfast's own, which they can't have: `topology.endpoints` refuses those.
Their code is the user's: an error in it is answered as such and is in the log, and threads that it doesn't give back
are not those that ranges and lookups need. A newer app file may have others, so the table is made again for each file.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import USER_ERRORS, BadKey, ErrorCategory, HoldfastError, TopologyError
from holdfast.log.appfile import AppSpec, EndpointSpec
from holdfast.query.answers import source_headers
from holdfast.query.grants import read, visible
from holdfast.query.keytext import BadKeyText, parse_key
from holdfast.query.measuring import ANSWERED
from holdfast.query.opening import OpenStores, ReadSource
from holdfast.query.own_documents import OwnDocument, own_document
from holdfast.query.own_views import views_of
from holdfast.query.problems import Problem, answer_problem, json_response, of_users_code
from holdfast.query.queries import Kinds
from holdfast.query.reader import StoreReader
from holdfast.query.render import to_json
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.places import object_at
from holdfast.stores.scans import Closing
from holdfast.topology.endpoints import EndpointParameter, OwnEndpoint, parts_of

log = logging.getLogger(__name__)

_THREADS: Final = 8
_SHOWN: Final = 100
"""The characters of an argument that a refusal shows."""
_MOST: Final = 10_000
"""How many items of an iterator an endpoint may answer with."""
_AS_THEY_ARE: Final = (bytes, bytearray, float)


@dataclass(frozen=True)
class _Entry:
    """One endpoint of the app file, and its function or why it can't be imported."""

    spec: EndpointSpec
    parts: tuple[str | None, ...]
    found: OwnEndpoint | TopologyError

    def arguments(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The texts of the path's parameters; None if this is another path."""
        if len(parts) != len(self.parts) or any(a not in (None, b) for a, b in zip(self.parts, parts, strict=True)):
            return None
        names = [name[1:-1] for name in self.spec.path.split("/")[1:] if name.startswith("{")]
        return dict(zip(names, (b for a, b in zip(self.parts, parts, strict=True) if a is None), strict=True))


class OwnEndpoints:
    """An ASGI application that answers the user's own paths, and hands everything else to another one."""

    def __init__(self, reader: StoreReader, kinds: Kinds, others: ASGIApp) -> None:
        self._reader = reader
        self._kinds = kinds
        self._others = others
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-endpoints")
        self._file = reader.app
        self._entries = self._made(reader.app)
        self._loading: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Ends its threads. A function that hangs keeps its own until it returns."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._file is not self._reader.app and self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        # A known path is answered by the table that `needs` has used, without a wait in between. Only a path that is
        # not in it waits for the newer one; it has needed all scopes.
        found = self._find(scope)
        if found is None and self._loading is not None:
            await asyncio.shield(self._loading)
            found = self._find(scope)
        if found is None:
            await self._others(scope, receive, send)
            return
        entry, texts = found
        request = Request(scope, receive)
        try:
            response = await self._answered(entry, texts, request)
        except (Problem, HoldfastError) as error:
            response = await answer_problem(request, error)
        await response(scope, receive, send)

    def needs(self, scope: Scope) -> Sequence[str] | None:
        """The scopes that a request needs: to read each store that its endpoint reads; None for other paths."""
        found = self._find(scope)
        return None if found is None else [read(store) for store in found[0].spec.stores]

    def path_of(self, scope: Scope) -> str | None:
        """The path that the endpoint of a request declares; None for other paths."""
        found = self._find(scope)
        return None if found is None else found[0].spec.path

    def document(self, scope: Scope) -> OwnDocument:
        """The endpoints that the request may ask, as the OpenAPI document has them, without those of unknown code."""
        return own_document([each.found for each in self._askable(scope) if isinstance(each.found, OwnEndpoint)])

    def paths(self, scope: Scope) -> list[str]:
        """The paths that the request may ask."""
        return [each.spec.path for each in self._askable(scope)]

    def _askable(self, scope: Scope) -> Sequence[_Entry]:
        return [each for each in self._entries if len(visible(scope, each.spec.stores)) == len(each.spec.stores)]

    async def _load(self) -> None:
        """Makes the table of the newest app file. If that fails, the former one is used until there is another file."""
        file = self._reader.app
        try:
            self._entries = await asyncio.to_thread(self._made, file)
        except USER_ERRORS:
            log.exception(
                "The endpoints of the newest app file can't be loaded, so those of the one before are answered. Fix "
                "what the trace says and restart the instance, or start the app again with other endpoints."
            )
        finally:
            self._file, self._loading = file, None

    def _made(self, file: AppSpec) -> Sequence[_Entry]:
        """The endpoints of an app file. One of fixed parts is before one with parameters: /users/all, /users/{id}."""
        entries = [_Entry(spec, parts_of(spec.path), _imported(spec)) for spec in file.own_endpoints]
        return sorted(entries, key=lambda entry: [part is None for part in entry.parts])

    def _find(self, scope: Scope) -> tuple[_Entry, dict[str, str]] | None:
        """The endpoint of a path as it was sent: a slash that is percent-encoded belongs to a part."""
        if not self._entries:
            return None
        sent: bytes = scope["raw_path"].partition(b"?")[0]
        parts = [unquote_to_bytes(part).decode("utf-8", "replace") for part in sent.split(b"/")[1:]]
        for entry in self._entries:
            if (texts := entry.arguments(parts)) is not None:
                return entry, texts
        return None

    async def _answered(self, entry: _Entry, texts: Mapping[str, str], request: Request) -> Response:
        if isinstance(entry.found, TopologyError):
            raise Problem(
                500,
                "endpoint_not_found",
                "This instance can't import the function of this path; its log says why.",
                f"Make the module {entry.spec.place.partition(':')[0]} importable where the instance runs, and restart "
                "it.",
            )
        if request.method not in ("GET", "HEAD"):
            raise Problem(405, "method_not_allowed", "Stores are read here, not written.", "Use GET.")
        arguments = _arguments(entry.found, texts, request)
        work = partial(copy_context().run, self._run, entry.found, arguments, request.scope)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _run(self, endpoint: OwnEndpoint, arguments: Mapping[str, Any], scope: Scope) -> Response:
        def called(opened: OpenStores) -> tuple[ReadSource, Any]:
            scope[ANSWERED] = opened.source.answered
            stores = views_of(self._reader, self._kinds, endpoint.reads, opened)
            try:
                return opened.source, _rendered(endpoint.function(stores, **arguments))
            except (Problem, BadKey):
                raise
            except BaseException as error:  # SystemExit and others would end the event loop, or give no answer
                if isinstance(error, HoldfastError) and error.category is not ErrorCategory.INVALID:
                    raise  # of the stores: they are being restored, say
                what = f"The endpoint {endpoint.path}"
                raise of_users_code("endpoint_failed", what, endpoint.place, error) from error

        source, answer = self._reader.answer(self._reader.places_of(*endpoint.reads), called, stays=True)
        headers = source_headers(source)
        if answer is None:
            asked = ", ".join(f"{name}={str(value)[:_SHOWN]!r}" for name, value in arguments.items())
            fact = f"The endpoint {endpoint.path} has found nothing{f' for {asked}' if asked else ''}."
            what = "Check what is asked for. It is the app's own function that has returned None."
            raise Problem(404, "not_found", fact, what, headers=headers)
        return json_response(answer, headers=headers)


def _imported(spec: EndpointSpec) -> OwnEndpoint | TopologyError:
    try:
        found = object_at(spec.place, f"endpoint {spec.path}")
        if not isinstance(found, OwnEndpoint) or found.path != spec.path:
            raise TopologyError(
                f"endpoint {spec.path}: {spec.place!r} is another thing here than where the app runs. Install the same "
                "release."
            )
    except TopologyError as error:
        log.warning("%s", error)
        return error
    return found


def _arguments(endpoint: OwnEndpoint, texts: Mapping[str, str], request: Request) -> dict[str, Any]:
    """The arguments of the function, of their types."""
    in_query = [each.name for each in endpoint.parameters if not each.in_path]
    what = f"The parameters here are {', '.join(in_query)}." if in_query else "This path takes no parameters."
    try:
        pairs = parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Problem(400, "bad_parameter", "The query string is not percent-encoded UTF-8.", what) from None
    given = dict(pairs)
    if wrong := [name for name in given if name not in in_query]:
        raise Problem(400, "bad_parameter", f"There is no parameter {wrong[0][:100]!r} here.", what)
    if len(given) < len(pairs):
        raise Problem(400, "bad_parameter", "A parameter is given twice.", "Give each once.")
    found: dict[str, Any] = {}
    for each in endpoint.parameters:
        text = texts[each.name] if each.in_path else given.get(each.name)
        if text is not None:
            found[each.name] = _value(each, text)
        elif each.required:
            raise Problem(400, "bad_parameter", f"The parameter {each.name!r} is missing.", what)
        else:
            found[each.name] = each.default
    return found


def _value(parameter: EndpointParameter, text: str) -> Any:
    schema = Schema.of(**{parameter.name: key_schema(parameter.type).fields[0].type})
    try:
        return parse_key(schema, text)[0]
    except BadKeyText as error:
        fact = f"{parameter.name}={text[:100]!r} is not a {schema.fields[0].type}."
        raise Problem(400, "bad_parameter", fact, error.what_to_do) from None


def _rendered(answer: Any) -> Any:
    """What a function has returned, in JSON."""
    if isinstance(answer, Closing | Iterator):
        with Closing(iter(answer)) as items:
            answer = list(islice(items, _MOST + 1))
        if len(answer) > _MOST:
            raise ValueError(f"it has more than {_MOST:,} items")
    rendered = to_json(msgspec.to_builtins(answer, builtin_types=_AS_THEY_ARE))
    msgspec.json.encode(rendered)  # half a character in a text, say, is an error of the endpoint, not of the answer
    return rendered
