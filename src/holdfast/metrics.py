"""The registry of all metrics of a process.

A module declares its metrics next to the code that updates them, with `counter`, `gauge` and `histogram`, and
`GET /metrics` serves them. Names start with `holdfast_` and end with a unit or `_total`, as Prometheus recommends.
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
"""All metrics of this process."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets for durations, from a lookup to a restore."""

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


class BadMetricName(HoldfastError):
    category = ErrorCategory.BUG


def counter(name: str, about: str, labels: Sequence[str] = ()) -> Counter:
    """A value that only grows. Prometheus shows it as `<name>_total`."""
    return Counter(_checked(name), about, labels, registry=REGISTRY)


def gauge(name: str, about: str, labels: Sequence[str] = ()) -> Gauge:
    """A value that goes up and down."""
    return Gauge(_checked(name), about, labels, registry=REGISTRY)


def histogram(name: str, about: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
    """The distribution of a value. The default buckets are for durations in seconds."""
    return Histogram(_checked(name), about, labels, buckets=buckets, registry=REGISTRY)


class MetricSource(Protocol):
    """Metrics that are measured when they are requested."""

    def collect(self) -> Iterable[Metric]: ...


class _Checked:
    """Adapts a source to the registry and checks its names."""

    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        return ()  # the source isn't measured at registration

    def collect(self) -> Iterable[Metric]:
        for metric in self._source.collect():
            _checked(metric.name)
            yield metric


def collected(source: MetricSource) -> None:
    """Adds a source that is measured at every request, for values that are counted elsewhere."""
    REGISTRY.register(_Checked(source))


def expose(accept: str = "") -> tuple[bytes, str]:
    """All metrics as text, and its content type, by the Accept header of the request."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type


def value(name: str, **labels: str) -> float:
    """The current value of a sample; 0 before the first update.

    >>> seen = counter("holdfast_doctest_seen", "Things seen.", ["animal"])
    >>> seen.labels("fish").inc(2)
    >>> value("holdfast_doctest_seen_total", animal="fish"), value("holdfast_doctest_seen_total", animal="bird")
    (2.0, 0.0)
    """
    return REGISTRY.get_sample_value(name, labels) or 0.0


def _checked(name: str) -> str:
    if not name.startswith("holdfast_"):
        raise BadMetricName(f"The metric {name!r} must start with holdfast_. Rename it where it is declared.")
    return name
