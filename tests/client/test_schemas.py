"""Values of former schemas, read with the client: only the code of the app has the upcasters."""

from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.log.appfile import AppSpec
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.versioned import VersionedKeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.schema.history import merged
from holdfast.words import TaskId
from tests.log.making import subtopologies_of
from tests.query.instances import started
from tests.stores.schemas import First, Tenths


def stores(value: Any) -> tuple[Any, ...]:
    return (
        KeyValueStore("people", key=str, value=value),
        WindowStore("plays", value=value, size="10s", retention="1m"),
        VersionedKeyValueStore("scores", value=value, retention="1m"),
    )


def test_a_value_that_needs_an_upcaster_is_as_it_was_written(tmp_path: Path) -> None:
    """Whatever type is asked for. `schema` says so, in every answer that has values."""
    old, now = stores(First), Now(20_000, 20_000)
    specs = tuple(merged(one.spec(), new.spec()) for one, new in zip(old, stores(Tenths), strict=True))
    names = [spec.name for spec in specs]
    app = AppSpec(id="game", partitions=2, stores=specs, subtopologies=subtopologies_of(dict.fromkeys(names, 0)))
    with started(tmp_path, app) as group:
        for store, spec in zip(old, specs, strict=True):
            written = DictBytes()
            bound = store.bind(written, now, spec=spec)
            bound.put("ann", First("Ann", 30), *(() if spec.name == "people" else (10_000,)))
            bound.end_of_version()
            task = TaskId(0, partition_of(spec.key, ("ann",), app.partitions))
            group.driver.commit_cells(spec, {task: dict(written.entries)})
        group.settle()
        with hf.Client([rest.url for rest in group.rests]) as client:
            [entry] = client.store("people", Tenths).entries(["ann"])
            [window] = client.store("plays", Tenths).windows("ann")
            [every] = client.store("plays", Tenths).all_windows()
            [past] = client.store("scores", Tenths).history("ann")
            change = next(client.store("people", Tenths).watch("ann", from_version=1))
    found: Any
    for found in (entry, window, every, past, change):
        assert (found.value, found.schema) == ({"user": "Ann", "score": 30}, 1)
