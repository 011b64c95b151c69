"""One registry of everything a process counts.

A module declares its metrics beside the code that counts, through `counter`, `gauge` and `histogram` here, and
`GET /metrics` of that process serves them. Names begin with `holdfast_` and end in a unit or `_total`, as Prometheus
asks.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from holdfast.errors import ErrorCategory, HoldfastError

REGISTRY = CollectorRegistry(auto_describe=True)
"""Everything this process counts."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets for how long things take, from a lookup to a restore."""

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


class BadMetricName(HoldfastError):
    category = ErrorCategory.BUG


def counter(name: str, about: str, labels: Sequence[str] = ()) -> Counter:
    """Something that only grows. Prometheus shows it as `<name>_total`."""
    return Counter(_checked(name), about, labels, registry=REGISTRY)


def gauge(name: str, about: str, labels: Sequence[str] = ()) -> Gauge:
    """Something that goes up and down."""
    return Gauge(_checked(name), about, labels, registry=REGISTRY)


def histogram(name: str, about: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
    """How often each size of something occurs; durations in seconds unless other buckets are given."""
    return Histogram(_checked(name), about, labels, buckets=buckets, registry=REGISTRY)


class MetricSource(Protocol):
    """Something that is measured when it is asked for, and not before."""

    def collect(self) -> Iterable[Metric]: ...


class _Checked:
    """A source as the registry wants it, its names checked each time."""

    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is asked of the source at registration

    def collect(self) -> Iterable[Metric]:
        for metric in self._source.collect():
            _checked(metric.name)
            yield metric


def collected(source: MetricSource) -> None:
    """Adds metrics that a source makes at each look, for what others count already."""
    REGISTRY.register(_Checked(source))


def expose(accept: str = "") -> tuple[bytes, str]:
    """All metrics as text and the content type of that text, by what the asker accepts."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type


def value(name: str, **labels: str) -> float:
    """One sample as it stands, 0 before the first count.

    >>> seen = counter("holdfast_doctest_seen", "Things seen.", ["kind"])
    >>> seen.labels("fish").inc(2)
    >>> value("holdfast_doctest_seen_total", kind="fish"), value("holdfast_doctest_seen_total", kind="bird")
    (2.0, 0.0)
    """
    return REGISTRY.get_sample_value(name, labels) or 0.0


def _checked(name: str) -> str:
    if not name.startswith("holdfast_"):
        raise BadMetricName(f"The metric {name!r} must begin with holdfast_. Rename it where it is declared.")
    return name
