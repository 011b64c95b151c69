"""The operations that read one key, and those that describe stores.

Every answer has the version it is from. Lookups in a replica of this process are done on the event loop, since they
take microseconds; everything that waits (ranges, other instances, a version to come) runs on a thread.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, cast

from msgspec import UNSET
from starlette.responses import Response

from holdfast.instance.config import Role
from holdfast.query import rewrite_progress
from holdfast.query.answers import KeyAnswer, RewritingAnswer, StoreAnswer, StoresAnswer, from_parts
from holdfast.query.freshness import ANY
from holdfast.query.grants import visible
from holdfast.query.health import AppStateInfo
from holdfast.query.key_answers import KEYS_PATH, answer_body
from holdfast.query.keytext import example, key_text, parse_key, render_key
from holdfast.query.measuring import Answered
from holdfast.query.opening import OpenPart, OpenStores
from holdfast.query.operations import FIELDS, FRESH, REFUSALS, TIME, Call, Operation, Parameter
from holdfast.query.problems import Problem, json_bytes, json_response
from holdfast.query.queries import Asked, Kinds, time_of
from holdfast.query.reader import StoreReader
from holdfast.query.requests import key_in_path
from holdfast.query.showing import Fields, Showing, fields_of, selected
from holdfast.stores.formats.cells import FIRST_SCHEMA
from holdfast.stores.kinds import kind_name
from holdfast.stores.kinds.queries import Item
from holdfast.stores.schema.without_code import newest_fields
from holdfast.stores.spec import SESSION, RowValues, StoreSpec

_GAP: Final = "gap_ms"
"""What the log calls window_ms, also of a session store."""
_LIMITS: Final = ("ttl_ms", "retention_ms", "max_entries")
"""What bounds a store, shown where it has any."""

AS_OF: Final = Parameter("as_of", TIME, "Of a store with a history: the value that was valid at this time.")


class StoreEndpoints:
    """The functions behind the paths of stores."""

    def __init__(self, reader: StoreReader, state: Callable[[], AppStateInfo], kinds: Kinds, showing: Showing) -> None:
        self._reader = reader
        self._specs = reader.specs
        self._kinds = kinds
        self._state = state
        self._showing = showing

    def operations(self) -> list[Operation]:
        gone = (*REFUSALS, 410)
        return [
            Operation(
                "list_stores",
                "/v1/stores",
                "The stores, with their types.",
                self.stores,
                StoresAnswer,
                tag="Stores",
                returns="Each store with its kind, the types of its key and its value, and its options.",
            ),
            Operation(
                "get_store",
                "/v1/stores/{store}",
                "One store, with its types.",
                self.one,
                StoreAnswer,
                (),
                REFUSALS,
                tag="Stores",
                returns="The store with its kind, the types of its key and its value, and its options.",
            ),
            Operation(
                "get_key",
                KEYS_PATH,
                "The value of one key.",
                self.key,
                KeyAnswer,
                (FIELDS, AS_OF, *FRESH),
                gone,
                stores=partial(self._kinds.by_key, self._specs),
                tag="Entries",
                returns="The value, its times where the store keeps them, and the version and replica it is from.",
            ),
            Operation(
                "get_rewriting",
                "/v1/stores/{store}/rewriting",
                "The progress of the rewrite pass.",
                self.rewriting,
                RewritingAnswer,
                (),
                REFUSALS,
                tag="Stores",
                returns="How far each partition is.",
            ),
            Operation(
                "get_state",
                "/v1/state",
                "The state of the app, and its tasks here.",
                self.state,
                AppStateInfo,
                tag="The app",
                returns="The state with its cause, the versions, and each task of this instance.",
            ),
        ]

    async def stores(self, call: Call) -> Response:
        shown = visible(call.request.scope, [spec.name for spec in self._specs.all()])
        described = [self._describe(self._specs[store]) for store in shown]
        return json_response(StoresAnswer(version=self._state().version, stores=described))

    async def one(self, call: Call) -> Response:
        return json_response(StoreAnswer(version=self._state().version, store=self._describe(self._specs[call.store])))

    async def state(self, call: Call) -> Response:
        return json_response(self._state())

    async def key(self, call: Call) -> Response:
        spec = self._specs[call.store]
        self._kinds.check_by_key(spec)
        values = parse_key(spec.key, key_in_path(call.request, spec.key))
        fields, freshness = fields_of(spec, call.given.get("fields")), call.freshness
        if "as_of" in call.given:
            call = call.demanding(await self._reader.awaited(freshness, self._reader.tasks_of(spec.name)))
            as_of = partial(self._as_of, call, spec, values, fields)
            return await self._reader.threads.run(call.freshness, as_of)
        lookup = self._reader.find(spec.name, values)
        found = self._reader.get_here(lookup) if freshness is ANY else None
        if found is None:
            freshness = await self._reader.awaited(freshness, [lookup.task])
            found = await self._reader.threads.run(freshness, partial(self._reader.get, lookup, freshness))
        call.measure(Answered.by(local=found.local, standby=found.served.role is Role.STANDBY))
        if found.cell is None and spec.value.by_processor:  # it may be under the key of another partition
            search = partial(self._reader.search, lookup, found, freshness)
            found = await self._reader.threads.run(freshness, search)
            call.measure(Answered.SCATTERED)
        text = key_text(spec.key, values)
        if found.cell is None:
            raise Problem(
                404,
                "key_not_found",
                f"Store {spec.name!r} has no key {text[:200]!r} at version {found.version}.",
                f"Check the key, or see which there are: /v1/stores/{spec.name}/range?limit=10"
                if found.version
                else "No batch is committed yet. Ask again when /v1/state shows version 1 or later.",
                {
                    "store": spec.name,
                    "key": render_key(spec.key, values),
                    "version": found.version,
                    "committed": found.now.wall if found.version else None,
                    "event_time": found.now.event,
                    "task": str(found.task),
                    "role": found.served.role,
                    "instance": found.served.instance,
                },
            )
        if self._specs.is_unknown_schema(spec.name, found.cell.schema):
            await asyncio.to_thread(self._specs.load_schema, spec.name, found.cell.schema)
        members = self._showing.cell(spec.name, text, found.cell, fields)
        return json_bytes(answer_body(spec, values, members, found.task, found.version, found.now, found.served))

    def _as_of(self, call: Call, spec: StoreSpec, values: Sequence[object], fields: Fields) -> Response:
        """The value that was valid at a time: of a history, what is valid from that time to that time."""
        time, text = call.given["as_of"], key_text(spec.key, values)
        time_of("as_of", time, 0)  # the query of a history calls it from and to
        asked = Asked(self._kinds, spec, self._kinds.query(spec, "history"), text, {"from": time, "to": time})

        def valid(part: OpenPart) -> tuple[OpenPart, list[Item]]:
            with closing(asked.placed(self._specs.at(spec.name, part.store.version), part)) as items:
                return part, [each.item for each in itertools.islice(items, 1)]

        def answer(opened: OpenStores) -> Response:
            call.measure(opened.source.answered)
            found = [(part, item) for part, items in opened.read(valid) for item in items]
            if not found:
                fact = f"Store {spec.name!r} knows no value of {text[:200]!r} as of {time[:100]}."
                what = f"See what it knows: /v1/stores/{spec.name}/history/{{key}}"
                said = {"key": render_key(spec.key, values), **from_parts(spec.name, opened.source)}
                raise Problem(404, "key_not_found", fact, what, {n: v for n, v in said.items() if v is not UNSET})
            part, item = max(found, key=lambda each: cast(int, each[1]["timestamp"]))
            store = part.store
            shown = {**item, "value": selected(item["value"], fields) if fields else item["value"]}
            return json_bytes(answer_body(spec, values, shown, part.place.task, store.version, store.now, store.served))

        return self._reader.answer(self._reader.places_of(spec.name), answer, call.freshness)

    async def rewriting(self, call: Call) -> Response:
        spec = self._specs[call.store]
        found = await asyncio.to_thread(self._reader.read, spec.name, rewrite_progress.read)
        return json_response(rewrite_progress.summary(spec, found.parts))

    def _describe(self, spec: StoreSpec) -> dict[str, object]:
        return {
            "store": spec.name,
            "kind": kind_name(spec.kind),
            "key": str(spec.key),
            "example_key": example(spec.key),
            "value": str(spec.value.shown) if isinstance(spec.value, RowValues) else newest_fields(spec.schemas),
            "codec": spec.codec,
            "engine": spec.engine,
            "partitions": spec.partitions(self._reader.app.partitions),
            **{name: limit for name in _LIMITS if (limit := getattr(spec, name))},
            **{_GAP if spec.kind == SESSION and name == "window_ms" else name: each for name, each in spec.fixed},
            **dict(spec.options),
            **({"schema": spec.schema} if spec.schema > FIRST_SCHEMA else {}),
            **({"aggregates": dict(spec.aggregates)} if spec.aggregates else {}),
            **({} if spec.durable else {"durable": False}),
            **({"everywhere": True} if spec.everywhere else {}),
        }
