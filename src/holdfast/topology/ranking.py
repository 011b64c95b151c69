"""Leaderboards: the best rows of a table, per group, kept up to date from the table's changes.

    table ─► changed rows ─► by group ─► index of all scores ─► the n best of each changed group

A row that leaves the best ones makes room for the next best, so the scores of all rows are kept: per row in one store,
and in the order of the scores in another, with the other columns of the row. A change moves one entry of each, and the
best ones are the last n entries of a group.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.scalars import from_whole_number, moment_number
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.scores import RANKING, SCORES, ScoreStore
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import KEY_VALUE
from holdfast.topology.frames import key_of
from holdfast.topology.outputs import DELETED
from holdfast.topology.processing import add_processing
from holdfast.topology.processor import Context, Processor, key_as_python
from holdfast.topology.reducing import ReducedTable
from holdfast.topology.steps import WithText

if TYPE_CHECKING:
    from holdfast.topology.aggregation import Table

ALL: Final = "_all"
"""The group column of a leaderboard over the whole table."""

MOST: Final = 1_000


@dataclass(frozen=True)
class Columns:
    """The columns of a leaderboard: those of a group, the others of a row's key, the score, and all others."""

    group: Schema
    rest: Schema
    score: Field
    others: tuple[str, ...] = ()

    @property
    def by_row(self) -> Schema:
        return Schema(self.group.fields + self.rest.fields)

    @property
    def by_score(self) -> Schema:
        return Schema((*self.group.fields, self.score, *self.rest.fields))


def add_top(table: Table, n: int, by: str, per: str | Iterable[str] | None, name: str) -> ReducedTable:
    """Adds a leaderboard of a table."""
    where = f"top({n!r}, by={by!r}, name={name!r})"
    if not 1 <= n <= MOST:
        raise TopologyError(f"{where}: n is a whole number from 1 to {MOST}.")
    spec = table.spec
    if spec.kind != KEY_VALUE or (spec.ttl_ms and not layout_of(spec).deletes):
        raise TopologyError(
            f"{where}: rows of {table.name!r} end without a sign, so they would stay in the leaderboard. Use a table "
            "without windows, history= and ttl=, or one with ttl_to_sinks=True."
        )
    groups = () if per is None else (per,) if isinstance(per, str) else tuple(per)
    for column in groups:
        if column not in spec.key.names:
            raise TopologyError(
                f"{where}: per={column!r} is not in the table's key ({', '.join(spec.key.names)}). "
                f"{did_you_mean(column, spec.key.names)}Group by it too, so that a row never changes its group."
            )
    if by in spec.key.names:
        raise TopologyError(f"{where}: {by!r} is in the table's key. Rank by one of its results.")
    results = [field.name for field in spec.columns.fields if not field.hidden_in]
    if by not in results:
        raise TopologyError(
            f"{where}: the table {table.name!r} has no column {by!r}. {did_you_mean(by, results)}It has "
            f"{', '.join(results)}."
        )
    stream = table.to_stream()
    stream = stream.key_by(*groups) if groups else stream.transform(WithText(ALL, "all")).key_by(ALL)
    rest = [column for column in spec.key.names if column not in groups]
    if not rest:
        raise TopologyError(f"{where}: per= has the whole key of the table, so each group is one row. Leave some out.")
    score = key_as_python(key_of(stream.frame, (by,)))
    columns = Columns(
        key_as_python(key_of(stream.frame, stream.key)),
        key_as_python(key_of(stream.frame, rest)),
        score.fields[0],
        tuple(column for column in results if column != by),
    )
    used = [*rest, by, *columns.others, *([DELETED] if layout_of(spec).deletes else [])]
    add_processing(stream, ranking_of(name, n, columns), None, {}, name, None, used)
    return ReducedTable(stream.topology, name)


def ranking_of(name: str, n: int, columns: Columns) -> type[Processor]:
    """The processor of a leaderboard."""
    group_key: Any = columns.group
    row_key: Any = columns.by_row
    score_key: Any = columns.by_score
    kind = columns.score.field_type.python
    moments = columns.score.type if issubclass(kind, dt.date) else None
    rest, by, width = columns.rest.names, columns.score.name, len(columns.group.fields)

    class Top(Processor):
        _texts = True
        best: Any = TimestampedKeyValueStore(name, key=group_key, value=list[dict[str, Any]], late="last")
        scores: Any = ScoreStore(
            name + SCORES, key=row_key, value=str if moments else kind, group=width, moments=moments, other_key=True
        )
        ranking: Any = KeyValueStore(name + RANKING, key=score_key, value=dict[str, Any], other_key=True)

        def init(self, ctx: Context) -> None:
            self.changed: dict[tuple[Any, ...], int] = {}

        def prefetch(self, key: Any, event: Any) -> Iterable[tuple[Any, Any]]:
            group, row, score = _parts(key), _row(event), _score(event)
            yield self.scores, (*group, *row)
            if score is not None:
                yield self.ranking, (*group, score, *row)

        def process(self, key: Any, event: Any, ctx: Context) -> None:
            group, row = _parts(key), _row(event)
            old = _stored(self.scores.get((*group, *row)))
            new = None if getattr(event, DELETED, False) else _score(event)
            others = msgspec.to_builtins({column: getattr(event, column) for column in columns.others})
            if old == new and (new is None or self.ranking.get((*group, new, *row)) == others):
                return
            if old is not None and old != new:
                self.ranking.delete((*group, old, *row))
            if old != new:
                self.scores.put((*group, *row), msgspec.to_builtins(new) if moments else new)
            if new is not None:
                self.ranking.put((*group, new, *row), others)
            self.changed[group] = max(ctx.timestamp, self.changed.get(group, ctx.timestamp))

        def close(self) -> None:
            for group, time in self.changed.items():
                key = group[0] if width == 1 else group
                with self.ranking.prefix(group, reverse=True) as entries:
                    found = [_shown(entry) | others for entry, others in islice(entries, n)]
                there = self.best.get(key)
                if there is None or there.value != found:
                    self.best.put(key, found or None, time)

    def _score(event: Any) -> Any:
        """None for a row without a score: one that is null, or not a number."""
        score = getattr(event, by)
        return None if isinstance(score, float) and isnan(score) else score

    def _stored(score: Any) -> Any:
        """A stored score as it is in an event."""
        if score is None or not moments:
            return score
        return from_whole_number(columns.score, moment_number(columns.score, score))

    def _row(event: Any) -> tuple[Any, ...]:
        return tuple(getattr(event, column) for column in rest)

    def _shown(entry: tuple[Any, ...]) -> dict[str, Any]:
        key = dict(zip(rest, entry[width + 1 :], strict=True))
        plain: dict[str, Any] = msgspec.to_builtins({**key, by: entry[width]})
        return plain

    return Top


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
