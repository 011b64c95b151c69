"""What a table with a history has at a time, by a plain program."""

from collections import defaultdict
from typing import Generic, TypeVar

V = TypeVar("V")


class HistoryOracle(Generic[V]):
    """The values of each key by their times. `kept` is the earliest time of the history."""

    def __init__(self) -> None:
        self.values: dict[str, dict[int, V | None]] = defaultdict(dict)

    def put(self, key: str, time: int, value: V | None, kept: float) -> None:
        if time >= kept:
            self.values[key][time] = value

    def latest(self, key: str) -> tuple[int, V] | None:
        """The latest value of a key that isn't deleted, and its time."""
        values = self.values[key]
        if not values:
            return None
        time = max(values)
        value = values[time]
        return None if value is None else (time, value)

    def at(self, key: str, time: int, kept: float) -> V | None:
        values, latest = self.values[key], self.latest(key)
        if latest is not None and latest[0] <= time:
            return latest[1]
        earlier = [each for each in values if each <= time]
        return values[max(earlier)] if earlier and time >= kept else None
