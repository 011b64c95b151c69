"""How many requests there were and how long they took, apart for where their answers came from.

A lookup in this process takes microseconds, one on another instance a round trip, and one of all partitions as long as
the slowest of them. One histogram of them all would say nothing about any. A standby is apart, since it answers where
the active replica doesn't, often after a wait for it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, MutableMapping
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from holdfast import metrics

ANSWERED: Final = "holdfast.answered"
"""In the scope of a request: where its answer came from."""

LOOKUPS: Final = "/v1/stores/{store}/keys/{key}"
"""The path of lookups, which may be answered, or refused, before an application sees them."""
NO_PATH: Final = "unknown"
"""How requests are counted for a path that isn't there, and what isn't HTTP."""
NO_ANSWER: Final = 499
"""How requests are counted that end without an answer: the client left, or the instance has stopped."""


class Answered(StrEnum):
    """Where an answer came from."""

    LOCAL = "local"
    """The active replica, in this process."""
    ROUTED = "routed"
    """The active replica, on another instance."""
    STANDBY = "standby"
    """A standby, here or elsewhere."""
    SCATTERED = "scattered"
    """Several partitions."""
    OTHER = "other"
    """No replica: a refusal, a description, health."""

    @classmethod
    def by(cls, *, local: bool, standby: bool) -> "Answered":
        return cls.STANDBY if standby else cls.LOCAL if local else cls.ROUTED


class _Times:
    """How long some requests took, as a histogram. Counting one takes 0.4 us, prometheus-client's own 1.9."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(metrics.SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(metrics.SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The upper bound of each bucket, and how many requests took at most so long."""
        return list(zip([*map(floatToGoString, metrics.SECONDS), "+Inf"], accumulate(self.counts), strict=True))


Observe = Callable[[float, Answered], None]
"""Counts a request that was answered with 200, with the seconds it took."""


class RequestMetrics:
    """The requests of all applications of this process. Each application counts on its event loop."""

    def __init__(self) -> None:
        self._times: defaultdict[tuple[str, Answered], _Times] = defaultdict(_Times)
        self._statuses: Counter[tuple[str, str]] = Counter()

    def observe(self, path: str, status: int, scope: MutableMapping[str, Any], taken: float) -> None:
        """Counts a request."""
        self._times[path, scope.get(ANSWERED, Answered.OTHER)].add(taken)
        self._statuses[path, str(status)] += 1

    def refused(self, path: str, status: int) -> None:
        """Counts a request that was refused at once, which takes no time."""
        self._statuses[path, str(status)] += 1

    def observer(self, path: str) -> Observe:
        """Counts quickly, for one path."""
        times, statuses, found = {each: self._times[path, each] for each in Answered}, self._statuses, (path, "200")

        def observe(taken: float, answered: Answered) -> None:
            times[answered].add(taken)
            statuses[found] += 1

        return observe

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "holdfast_rest_requests", "REST requests by path and status.", labels=["path", "status"]
        )
        for labels, number in self._statuses.copy().items():
            requests.add_metric(labels, number)
        seconds = HistogramMetricFamily(
            "holdfast_rest_request_seconds",
            "How long REST requests took, by path and replicas.",
            labels=["path", "answered"],
        )
        for (path, answered), times in self._times.copy().items():
            seconds.add_metric([path, str(answered)], times.buckets(), times.sum)
        return [requests, seconds]


REQUESTS: Final = RequestMetrics()
metrics.collected(REQUESTS)
