"""Kafka Streams' documented tables of joins, in the test driver."""

from typing import Any

import holdfast as hf
from holdfast.testing import TestDriver, records
from tests.documented_joins import OUTPUTS, SECONDS, SOURCES, batch_at, build, check


def test_every_join_gives_the_documented_rows() -> None:
    app = hf.App("documented", settings=hf.Settings(partitions=1))
    build(app, {name: records(columns) for name, columns in SOURCES.items()})
    driver = TestDriver(app)
    outputs: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in OUTPUTS}
    for second in SECONDS:
        driver.pipe_all(batch_at(second))
        for name, rows in outputs.items():
            rows[second] = driver.output(name)
    check(outputs)
