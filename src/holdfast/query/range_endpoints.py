"""The operations over many entries by key: many keys in one request, ranges, scans and counts."""

import itertools
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from holdfast.errors import HoldfastError
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.answers import CountAnswer, Entry, KeysAnswer, RangeAnswer, ScanEnd, from_parts
from holdfast.query.keytext import decode_keys, parse_json_key, parse_key, render_key
from holdfast.query.opening import OpenPart
from holdfast.query.operations import (
    FIELDS,
    FLAG,
    FRESH,
    JSON,
    LIMITED,
    MAX_LIMIT,
    PARTIAL,
    REFUSALS,
    TEXT,
    Call,
    Operation,
    Parameter,
    Type,
)
from holdfast.query.paging import PageLimits, first
from holdfast.query.problems import Problem, json_response, problem_of, report
from holdfast.query.queries import Kinds
from holdfast.query.reader import StoreReader, entry_size, merged
from holdfast.query.requests import Range, range_of
from holdfast.query.showing import Showing, fields_of
from holdfast.query.streaming import streamed
from holdfast.query.task_reader import ReadInterrupted
from holdfast.query.wanted_bytes import WantedBytes
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.spec import StoreSpec

NDJSON: Final = "application/x-ndjson"
_PIECE: Final = PageLimits(500, 1 << 20)
"""How much one piece of a scan has."""


def _any_limit(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text) >= 1):
        raise Problem(400, "bad_limit", f"{name}={text[:100]!r} is not a limit.", "Give a number from 1 on.")
    return int(text)


_RANGE: Final = (
    Parameter("from", TEXT, "The first key; of several components, the first ones are enough."),
    Parameter("to", TEXT, "The last key, which is included."),
    Parameter("prefix", TEXT, "The beginning of the keys: of a text, or the first components."),
)
_REVERSE: Final = Parameter("reverse", FLAG, "true: from the last key to the first.")
_CURSOR: Final = Parameter("cursor", TEXT, "The `cursor` of the page before.")
_UNLIMITED: Final = Parameter("limit", Type({"type": "integer", "minimum": 1}, _any_limit), "How many at most.")
_KEY: Final = Parameter("key", TEXT, "A key, as in the path. May be given many times.", required=True, many=True)
_APPROXIMATE: Final = Parameter("approximate", FLAG, "true: the engines' estimate, without reading the entries.")
_ENTRIES: Final = "One entry per key, in the order of the keys; `found` says whether it is there."


class RangeEndpoints:
    """The functions behind the paths of many entries."""

    def __init__(self, reader: StoreReader, kinds: Kinds, showing: Showing) -> None:
        self._reader = reader
        self._specs = reader.specs
        self._kinds = kinds
        self._showing = showing

    def operations(self) -> list[Operation]:
        by_key, gone = partial(self._kinds.by_key, self._specs), (*REFUSALS, 410)
        keys, shown = "/v1/stores/{store}/keys", (FIELDS, PARTIAL, *FRESH)
        paged, many = (*_RANGE, _REVERSE), (*gone, 413)
        return [
            Operation(
                "get_keys",
                keys,
                "Many keys.",
                self.keys,
                KeysAnswer,
                (_KEY, *shown),
                many,
                stores=by_key,
                tag="Entries",
                returns=_ENTRIES,
            ),
            Operation(
                "post_keys",
                keys,
                "Many keys, as a JSON array.",
                self.posted_keys,
                KeysAnswer,
                shown,
                many,
                method="POST",
                body=list[Any],
                body_example=lambda store, key: {JSON: [_member(key)]},
                stores=by_key,
                tag="Entries",
                returns=_ENTRIES,
            ),
            Operation(
                "get_range",
                "/v1/stores/{store}/range",
                "Entries in key order, page by page.",
                self.range,
                RangeAnswer,
                (*paged, LIMITED, _CURSOR, *shown),
                gone,
                stores=by_key,
                tag="Entries",
                returns="A page of entries, and the cursor of the next one.",
            ),
            Operation(
                "scan",
                "/v1/stores/{store}/scan",
                "Entries in key order, one per line. The last line is not an entry: it has `end` and `consistent`.",
                self.scan,
                None,
                (*paged, _UNLIMITED, _CURSOR, *shown),
                gone,
                media=NDJSON,
                stores=by_key,
                tag="Entries",
                returns="One JSON object per line.",
            ),
            Operation(
                "count",
                "/v1/stores/{store}/count",
                "How many entries there are; in a store by key also between two keys.",
                self.count,
                CountAnswer,
                (*_RANGE, _APPROXIMATE, PARTIAL, *FRESH),
                gone,
                tag="Entries",
                returns="The number of entries, and whether it is exact.",
            ),
        ]

    async def keys(self, call: Call) -> Response:
        spec = self._by_key(call)
        return await self._many(call, spec, [parse_key(spec.key, text) for text in call.given["key"]])

    async def posted_keys(self, call: Call) -> Response:
        spec = self._by_key(call)
        try:
            sent = decode_keys(await call.request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = 'Send a JSON array of keys, such as ["alice", "bob"].'
            raise Problem(400, "bad_body", f"The body is not a JSON array: {error}.", what) from None
        return await self._many(call, spec, [parse_json_key(spec.key, key) for key in sent])

    async def _many(self, call: Call, spec: StoreSpec, keys: Sequence[tuple[object, ...]]) -> Response:
        if not 1 <= len(keys) <= MAX_LIMIT:
            what = f"Ask for 1 to {MAX_LIMIT} keys in one request."
            raise Problem(400, "bad_limit", f"{len(keys)} keys are asked for.", what)
        fields = fields_of(spec, call.given.get("fields"))

        def answer() -> Response:
            source, found = self._reader.get_many(spec.name, keys, call.freshness, partial=call.partial)
            call.measure(source.answered)
            entries = tuple(
                self._showing.entry(spec, encode_key(spec.key, values), cell, fields)
                if isinstance(cell, bytes)
                else Entry(
                    key=render_key(spec.key, values),
                    value=None,
                    found=False if cell is None else UNSET,
                    error=UNSET if cell is None else str(cell),
                )
                for values, cell in zip(keys, found, strict=True)
            )
            return json_response(KeysAnswer(**from_parts(spec.name, source), entries=entries))

        call = await self._awaited(call)
        return await self._reader.threads.run(call.freshness, answer)

    async def range(self, call: Call) -> Response:
        spec = self._by_key(call)
        asked, fields = range_of(spec, call.given), fields_of(spec, call.given.get("fields"))

        def answer() -> Response:
            page = self._reader.range(
                spec.name,
                *asked.rest,
                limit=call.limit,
                reverse=asked.reverse,
                before=asked.before,
                freshness=call.freshness,
                partial=call.partial,
            )
            call.measure(page.source.answered)
            return json_response(
                RangeAnswer(
                    **from_parts(spec.name, page.source),
                    entries=tuple(self._showing.entry(spec, key, value, fields) for key, value in page.entries),
                    cursor=asked.after(spec.name, page.entries[-1][0], page.source) if page.more else None,
                    moved_on=page.source.moved_on(asked.before),
                )
            )

        call = await self._awaited(call)
        return await self._reader.threads.run(call.freshness, answer)

    async def scan(self, call: Call) -> Response:
        spec = self._by_key(call)
        asked = range_of(spec, call.given)
        call = await self._awaited(call)
        retries, threads = self._reader.retries(call.freshness), self._reader.threads
        while True:
            try:
                lines = self._lines(call, spec, asked)
                return await streamed(call.request, lines, NDJSON, begin=partial(threads.run, call.freshness))
            except (ReadInterrupted, VersionNotAvailable) as error:
                retries.check(error)

    def _lines(self, call: Call, spec: StoreSpec, asked: Range) -> Generator[bytes, None, None]:
        """The pieces of a scan. Parts stay open until its end, so that all of it is of one version if `consistent`.

        As a page, a scan with a limit ends between two keys: a key that several tasks have is not cut in two.
        """
        fields, encoder = fields_of(spec, call.given.get("fields")), msgspec.json.Encoder()
        limit: int | None = call.given.get("limit")
        places = self._reader.places_of(spec.name)
        with self._reader.opened_after(asked.before, places, call.freshness, partial=call.partial) as opened:
            call.measure(opened.source.answered)
            scans = [self._reader.guarded(part, *asked.rest, reverse=asked.reverse) for part in opened.parts]
            entries = iter(merged(scans, reverse=asked.reverse))
            shown = entries if limit is None else itertools.islice(entries, limit)
            count, last = 0, b""
            try:
                while piece := first(shown, _PIECE, entry_size):
                    count, last = count + len(piece), piece[-1][0]
                    yield encoder.encode_lines(self._showing.entry(spec, *entry, fields) for entry in piece)
                after = next(entries, None)
                while after is not None and after[0] == last:
                    count += 1
                    yield encoder.encode_lines([self._showing.entry(spec, *after, fields)])
                    after = next(entries, None)
                end = ScanEnd(
                    **from_parts(spec.name, opened.source),
                    entries=count,
                    cursor=None if after is None else asked.after(spec.name, last, opened.source),
                    moved_on=opened.source.moved_on(asked.before),
                )
                yield encoder.encode(end) + b"\n"
            except (HoldfastError, Problem) as error:
                if not count:
                    raise  # nothing was sent yet, so the answer can be a refusal, or another try
                problem = problem_of(error)
                report(error, problem, f"the scan of {spec.name}")
                yield encoder.encode(problem.body()) + b"\n"
            finally:
                for scan in scans:
                    scan.close()

    async def count(self, call: Call) -> Response:
        spec = self._specs[call.store]
        approximate = call.given.get("approximate", False)
        bounded = [name for name in ("from", "to", "prefix") if name in call.given]
        if bounded:
            self._kinds.check_by_key(spec)
        if bounded and approximate:
            fact = f"{bounded[0]}= is given, and an estimate is for the whole store."
            raise Problem(400, "bad_parameter", fact, "Leave out one of them.")
        asked = range_of(spec, call.given)

        def counted(part: OpenPart) -> int:
            if bounded:
                with closing(self._reader.batches(part, asked.start, asked.stop)) as batches:
                    return sum(len(keys) for keys, _ in batches)
            now = self._specs.at(spec.name, part.store.version)
            view = self._kinds.view(now, WantedBytes(part), part.store.now)
            return view.approximate_count() if approximate else view.count()

        def answer() -> Response:
            places = self._reader.places_of(spec.name)
            source, counts = self._reader.answer(
                places, lambda opened: (opened.source, opened.read(counted)), call.freshness, partial=call.partial
            )
            call.measure(source.answered)
            return json_response(CountAnswer(**from_parts(spec.name, source), count=sum(counts), exact=not approximate))

        call = await self._awaited(call)
        return await self._reader.threads.run(call.freshness, answer)

    async def _awaited(self, call: Call) -> Call:
        """The request when the replicas here are as fresh as it demands."""
        return call.demanding(await self._reader.awaited(call.freshness, self._reader.tasks_of(call.store)))

    def _by_key(self, call: Call) -> StoreSpec:
        spec = self._specs[call.store]
        self._kinds.check_by_key(spec)
        return spec


def _member(key: str) -> object:
    """The text of a key as it is in JSON.

    >>> _member("alice"), _member('["alice",42]')
    ('alice', ['alice', 42])
    """
    try:
        return msgspec.json.decode(key)
    except msgspec.DecodeError:
        return key
