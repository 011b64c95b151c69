"""The operations that kinds of stores declare: windows, sessions, histories, ranks, and queries of a user's own kind.

A store that was added while the instance runs, of a kind that no store had before, is served too: by a path that takes
the name of any query, and that is not in the OpenAPI document until the instance starts again.
"""

import functools
from typing import Any

from starlette.responses import Response

from holdfast.log.commits import Point
from holdfast.query.all_keys import AskedAll
from holdfast.query.answers import all_keys_answer, from_parts, query_answer
from holdfast.query.keytext import example, render_key
from holdfast.query.opening import OpenStores, ReadSource
from holdfast.query.operations import (
    FIELDS,
    FRESH,
    LIMITED,
    PARTIAL,
    REFUSALS,
    TEXT,
    TIME,
    Call,
    Endpoint,
    Operation,
    Parameter,
    checked,
)
from holdfast.query.paging import MergedPage, PageLimits
from holdfast.query.problems import Problem, json_response
from holdfast.query.queries import Asked, AskedQuery, Kinds, Placed
from holdfast.query.reader import StoreReader
from holdfast.query.requests import cursor_for, key_in_path
from holdfast.query.showing import Fields, fields_of, selected
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.kinds import queries
from holdfast.stores.kinds.queries import Item, Query
from holdfast.stores.spec import StoreSpec

_SHOWN = (FIELDS, PARTIAL, *FRESH)
_BETWEEN = (
    Parameter("key_from", TEXT, "The first key."),
    Parameter("key_to", TEXT, "The last key, which is included."),
    LIMITED,
    Parameter("cursor", TEXT, "The `cursor` of the page before. Beside it, times and keys may be left out."),
)
_ALWAYS = ("sessions", "windows")
"""Queries for all keys that have a path in every app."""
_TAGS = {**dict.fromkeys(("windows", "sessions", "history"), "Times"), "rank": "Leaderboards"}
_TEXTS = {"from": "The earliest, which is included.", "to": "The latest, which is included."}


class KindEndpoints:
    """The functions behind the paths of queries that kinds declare."""

    def __init__(self, reader: StoreReader, kinds: Kinds) -> None:
        self._reader = reader
        self._kinds = kinds
        self._answers: dict[str, Any] = {}

    def operations(self) -> list[Operation]:
        queries = sorted(self._kinds.queries().items())
        named = [self._operation(name, found) for name, found in queries]
        for_all = {name: found for name, found in queries if any(query.all_keys for query in found)}
        named += [self._operation_for_all(name, found) for name, found in for_all.items()]
        # Of a kind that no store has: the refusal names the paths of the store, and one may be added.
        unlisted = [self._operation_for_all(name, [], listed=False) for name in _ALWAYS if name not in for_all]
        path = "/v1/stores/{store}/{query}/{key:any}"
        any_name = Operation("query", path, "Any query.", self._endpoint(None), None, late=True, listed=False)
        return [*named, *unlisted, any_name]

    def _operation(self, name: str, found: list[Query]) -> Operation:
        parameters = {each.name: each for query in found for each in parameters_of(query, required=len(found) == 1)}
        return Operation(
            f"get_{name.replace('-', '_')}",
            f"/v1/stores/{{store}}/{name}/{{key:any}}",
            f"The {name} of one key.",
            self._endpoint(name),
            self._answer_type(name),
            (*parameters.values(), LIMITED, *_SHOWN),
            (*REFUSALS, 410),
            stores=functools.partial(self._kinds.with_query, self._reader.specs, name),
            late=True,
            key_example=functools.partial(self._example, name),
            tag=_TAGS.get(name, "Queries of kinds"),
            returns=f"The {name} in their order, and whether there are more.",
        )

    def _example(self, name: str, store: str) -> str:
        spec = self._kinds.answering(self._reader.specs, store, name)
        query = self._kinds.query(spec, name)
        return example(spec.key if query.key is None else key_schema(query.key))

    def _operation_for_all(self, name: str, found: list[Query], *, listed: bool = True) -> Operation:
        parameters = {each.name: each for query in found if query.all_keys for each in parameters_of(query)}
        answer = all_keys_answer(name)
        return Operation(
            f"get_all_{name.replace('-', '_')}",
            f"/v1/stores/{{store}}/{name}",
            f"The {name} of all keys, by key.",
            self._endpoint_for_all(name, answer),
            answer,
            (*parameters.values(), *_BETWEEN, *_SHOWN),
            (*REFUSALS, 410),
            stores=functools.partial(self._kinds.with_query, self._reader.specs, name),
            late=True,
            tag=_TAGS.get(name, "Queries of kinds"),
            returns=f"A page of {name}, and the cursor of the next one.",
            listed=listed,
        )

    def _endpoint_for_all(self, name: str, answer_type: Any) -> Endpoint:
        """The function of a query for all keys."""

        async def answer(call: Call) -> Response:
            spec = self._reader.specs[call.store]
            query = self._kinds.query(spec, name)
            if query.all_keys is None:
                what = f"Ask /v1/stores/{spec.name}/{query.path}."
                raise Problem(400, "wrong_kind", f"Store {spec.name!r} has {name} of one key only.", what)
            call = checked(call.request, (*parameters_of(query), *_BETWEEN, *_SHOWN))
            before = cursor_for(spec, name, call.given["cursor"]) if "cursor" in call.given else None
            own = {each: call.given[each] for each in (*query.parameters, "key_from", "key_to") if each in call.given}
            parameters = own if before is None else before.with_parameters(own)
            fields = fields_of(spec, call.given.get("fields"))
            asked = AskedAll(self._kinds, spec, query, parameters, before)
            point = None if before is None else before.point

            def answered() -> Response:
                source, page = self._page(call, spec, asked, point)
                cursor = asked.after(page.entries[-1], source, parameters) if page.more else None
                return json_response(
                    answer_type(
                        **from_parts(spec.name, source),
                        items=[_chosen(each.item, fields) for each in page.entries],
                        cursor=cursor,
                        moved_on=source.moved_on(point),
                    )
                )

            call = call.demanding(await self._reader.awaited(call.freshness, self._reader.tasks_of(spec.name)))
            return await self._reader.threads.run(call.freshness, answered)

        return answer

    def _answer_type(self, name: str) -> Any:
        return self._answers.get(name) or self._answers.setdefault(name, query_answer(name))

    def _endpoint(self, name: str | None) -> Endpoint:
        """The function of a query; without a name, of the query that the path names."""

        async def answer(call: Call) -> Response:
            wanted = name or call.request.path_params["query"]
            spec = self._kinds.answering(self._reader.specs, call.store, wanted)
            query = self._kinds.query(spec, wanted)
            call = checked(call.request, (*parameters_of(query), LIMITED, *_SHOWN))
            fields = fields_of(spec, call.given.get("fields"))
            asked = Asked(self._kinds, spec, query, key_in_path(call.request, spec.key), call.given)

            def answered() -> Response:
                source, page = self._page(call, spec, asked)
                return json_response(
                    self._answer_type(query.name)(
                        **from_parts(spec.name, source),
                        key=render_key(asked.key_schema, asked.key),
                        items=[_chosen(item, fields) for item in asked.items(page)],
                        more=page.more,
                        tasks=[str(task) for task in page.tasks],
                    )
                )

            call = call.demanding(await self._reader.awaited(call.freshness, self._reader.tasks_of(spec.name)))
            return await self._reader.threads.run(call.freshness, answered)

        return answer

    def _page(
        self, call: Call, spec: StoreSpec, asked: AskedQuery, before: Point | None = None
    ) -> tuple[ReadSource, MergedPage[Placed]]:
        """A page of the query, at the version of the page before while replicas have it."""
        spec_at = functools.partial(self._reader.specs.at, spec.name)
        limits = PageLimits(call.limit, self._reader.max_page)

        def read(opened: OpenStores) -> tuple[ReadSource, MergedPage[Placed]]:
            return opened.source, asked.page(opened, spec_at, limits)

        places = self._reader.places_of(spec.name)
        source, page = self._reader.next_page(places, read, before, call.freshness, partial=call.partial)
        call.measure(source.answered)
        return source, page


def _chosen(item: Item, fields: Fields) -> Item:
    return {**item, "value": selected(item["value"], fields)} if fields and "value" in item else item


def parameters_of(query: Query, *, required: bool = False) -> list[Parameter]:
    """The parameters of a query. Their texts are parsed with the key, in `queries`."""
    return [
        Parameter(
            name,
            TIME if type_ == queries.TIME else TEXT,
            _TEXTS.get(name, f"{name} of the query."),
            required=required and argument in query.required,
        )
        for name, (argument, type_) in query.parameters.items()
    ]
