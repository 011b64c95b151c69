"""Metrics: one registry, names with a prefix, and text for Prometheus."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import metrics


def test_metrics_are_exposed_in_prometheus_format() -> None:
    moved = metrics.counter("holdfast_test_moved", "Things moved in a test.", ["what"])
    waiting = metrics.gauge("holdfast_test_waiting", "Things waiting in a test.")
    took = metrics.histogram("holdfast_test_took_seconds", "How long a test took.")
    moved.labels("boxes").inc(3)
    waiting.set(2)
    took.observe(0.2)

    text, content_type = metrics.expose()

    assert content_type.startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert samples["holdfast_test_moved_total", "boxes"] == 3
    assert samples["holdfast_test_waiting",] == 2
    assert samples["holdfast_test_took_seconds_bucket", "0.25"] == 1
    assert samples["holdfast_test_took_seconds_bucket", "0.1"] == 0
    assert samples["process_resident_memory_bytes",] > 0


def test_metrics_are_exposed_in_openmetrics_format() -> None:
    text, content_type = metrics.expose("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_a_name_without_the_prefix_is_refused() -> None:
    with pytest.raises(metrics.BadMetricName, match="must start with holdfast_"):
        metrics.counter("other_things", "Other things.")


def test_a_metric_cannot_be_declared_twice() -> None:
    metrics.gauge("holdfast_test_once", "Declared once.")
    with pytest.raises(ValueError, match="holdfast_test_once"):
        metrics.gauge("holdfast_test_once", "Declared twice.")
