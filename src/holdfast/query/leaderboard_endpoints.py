"""The best rows of a leaderboard, as many as are asked for: `table.top(...)` keeps all rows in the order of scores.

A leaderboard has a store of its own name with the n best rows per group, and beside it the ranking: group, score and
row as the key, the other columns as the value. `top` reads the end of a group in the ranking, so it is exact for any
number of rows. `rank` is a query of the store of scores (`stores.kinds.scores`).
"""

from functools import partial

from starlette.responses import Response

from holdfast.query.answers import TopAnswer, from_parts
from holdfast.query.keytext import parse_key, render_key, render_scalar
from holdfast.query.operations import FIELDS, FRESH, LIMITED, PARTIAL, REFUSALS, Call, Operation
from holdfast.query.problems import Problem, json_response
from holdfast.query.reader import Entry, StoreReader
from holdfast.query.requests import key_in_path
from holdfast.query.showing import Fields, Showing, fields_of, selected
from holdfast.stores.formats.keys import decode_key, prefix_range
from holdfast.stores.kinds.scores import RANKING
from holdfast.stores.spec import StoreSpec


class LeaderboardEndpoints:
    """The function behind the path of leaderboards."""

    def __init__(self, reader: StoreReader, showing: Showing) -> None:
        self._reader = reader
        self._showing = showing

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "get_top",
                "/v1/stores/{store}/top/{key:any}",
                "The best rows of a group of a leaderboard, the best one first.",
                self.top,
                TopAnswer,
                (LIMITED, FIELDS, PARTIAL, *FRESH),
                (*REFUSALS, 410),
                stores=self._leaderboards,
                tag="Leaderboards",
                returns="The rows with all their columns.",
            )
        ]

    async def top(self, call: Call) -> Response:
        spec = self._reader.specs[call.store]
        if spec.name not in self._leaderboards():
            fact = f"Store {spec.name!r} is not a leaderboard."
            names = ", ".join(self._leaderboards())
            what = f"Ask for one of {names}." if names else "Make one with table.top(n, by=, name=)."
            raise Problem(400, "wrong_kind", fact, what, {"kind": spec.kind})
        group = parse_key(spec.key, key_in_path(call.request, spec.key))
        ranking = self._reader.specs[spec.name + RANKING]
        fields = fields_of(ranking, call.given.get("fields"))
        call = call.demanding(await self._reader.awaited(call.freshness, self._reader.tasks_of(ranking.name)))
        read = partial(
            self._reader.range,
            ranking.name,
            *prefix_range(ranking.key, group, partial=False),
            limit=call.limit,
            reverse=True,
            freshness=call.freshness,
            partial=call.partial,
        )

        def answer() -> Response:
            page = read()
            call.measure(page.source.answered)
            rows = [
                {"rank": n, "value": self._row(ranking, len(group), entry, fields)}
                for n, entry in enumerate(page.entries, 1)
            ]
            key = render_key(spec.key, group)
            return json_response(TopAnswer(**from_parts(spec.name, page.source), key=key, top=rows, more=page.more))

        return await self._reader.threads.run(call.freshness, answer)

    def _row(self, ranking: StoreSpec, width: int, entry: Entry, fields: Fields) -> object:
        """A row as the leaderboard has it: the columns of its key without the group, the score, the other columns.

        In the ranking the score comes before them.
        """
        shown = self._showing.entry(ranking, *entry)
        names = [field.name for field in ranking.key.fields]
        values = [render_scalar(value) for value in decode_key(ranking.key, entry[0])]
        score, *rest = zip(names[width:], values[width:], strict=True)
        columns = dict([*rest, score])
        others = shown.value if isinstance(shown.value, dict) else {}
        row = {**columns, **others}
        return selected(row, fields) if fields else row

    def _leaderboards(self) -> list[str]:
        names = {spec.name for spec in self._reader.specs.all()}
        return sorted(name for name in names if name + RANKING in names)
