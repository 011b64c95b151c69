"""The scores of a leaderboard's rows: a key-value store that knows the rank of a row in its group.

A key is the group's columns, then the row's. `GET /v1/stores/{store}/rank/{key}` reads all scores of the group. It is
asked by the name of the leaderboard, or by that of this store.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from holdfast.stores.formats.scalars import moment_number
from holdfast.stores.formats.types import Field
from holdfast.stores.kinds.base import K, V, View
from holdfast.stores.kinds.keyvalue import KeyValueStore, ReadOnlyKeyValueStore
from holdfast.stores.kinds.queries import Item, Query
from holdfast.stores.spec import StoreSpec

SCORES: Final = "-scores"
RANKING: Final = "-ranking"
"""How the two other stores of a leaderboard are named: its own name, and one of these."""


class ReadOnlyScoreStore(ReadOnlyKeyValueStore[K, V]):
    """Reads the scores of a leaderboard."""

    def rank(self, key: Any) -> int | None:
        """The rank of a row in its group, 1 for the best one; None for a row without a score.

        >>> from holdfast.stores.access import DictBytes, Now
        >>> scores = ScoreStore("scores", key=(str, str), value=int, group=1).bind(DictBytes(), Now(wall=0))
        >>> scores.update({("chess", "ann"): 7, ("chess", "bob"): 9, ("go", "cleo"): 8})
        >>> scores.rank(("chess", "ann")), scores.rank(("go", "cleo")), scores.rank(("go", "ann"))
        (2, 1, None)
        """
        score: Any = self.get(key)
        if score is None:
            return None
        own, place = self._order(score), self._encode(key)
        others = self.prefix(key[: self._spec.option("group")])
        return 1 + sum(
            (order := self._order(other)) > own or (order == own and self._encode(row) > place) for row, other in others
        )

    def _order(self, score: Any) -> tuple[bool, Any]:
        """NaN is larger than every number; of equal scores the larger key comes first, as in the index."""
        if (of := self._spec.option("moments")) is not None:
            return False, moment_number(Field("score", of), score)
        is_nan = score != score
        return is_nan, 0 if is_nan else score


def _rank(view: ReadOnlyScoreStore[Any, Any], key: Any) -> Iterator[Item]:
    rank = view.rank(key)
    if rank is not None:
        yield {"rank": rank, "value": view.get(key)}


class ScoreStore(KeyValueStore[K, V], ReadOnlyScoreStore[K, V]):
    """The score of each row of a leaderboard. `group=` is the number of the key's columns that are the group's.

    Scores of the type `moments=`, dates or times, are ISO texts: Python doesn't have all of them.
    """

    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyScoreStore
    KIND: ClassVar[str | None] = None
    QUERIES: ClassVar[tuple[Query, ...]] = (Query("rank", _rank),)

    def __init__(self, name: str, *, value: Any, key: Any, group: int, moments: str | None = None, **options: Any):
        options |= {"group": group, "moments": moments}
        super().__init__(name, key=key, value=value, **options)

    def read_only(self) -> ReadOnlyScoreStore[K, V]:
        """The same scores, without the methods that change them."""
        return self._quiet_as(ReadOnlyScoreStore)

    @classmethod
    def options(cls, where: str, *, group: int = 1, moments: str | None = None, **others: Any) -> dict[str, Any]:
        fields = super().options(where, **others)
        fixed = (*fields["fixed"], ("group", group), *((("moments", moments),) if moments else ()))
        return {**fields, "fixed": fixed}

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        yield from super().describe_options(spec)
        yield f"ranks within groups: the first {spec.option('group')} columns of the key"
