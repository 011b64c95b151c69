"""Static tables are read until this driver has committed a version itself."""

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import StorageUnavailable
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.pipeline.static_tables import StaticTables
from holdfast.testing import TestDriver, records
from holdfast.topology.topology import StaticRows


def test_rows_stay_unread_until_the_own_driver_commits() -> None:
    app = hf.App("orders")
    app.stream(records("id string"), key="id").group_by().count().store("orders")
    app.global_table(pa.table({"id": [1], "name": ["a"]}), "products", key="id")
    subtopologies = app._topology.subtopologies
    static = StaticTables.of(subtopologies)
    (rows,) = (each.stream.branches[0].origin for each in subtopologies if each.name == "products")
    assert isinstance(rows, StaticRows)
    assert list(static.due()) == ["products"]
    static.committed(own=False)
    assert static.is_unread(rows), "a commit of the driver before was under way, and has not read them"
    static.committed(own=True)
    assert not static.is_unread(rows) and not static.due()


def test_rows_stay_if_the_version_that_read_them_turns_out_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The put of a commit is stored and answered with an error, and a version that was due before comes next."""
    app = hf.App("orders")
    app.stream(records("id string"), key="id", name="ids").group_by().count().store("orders")
    app.global_table(pa.table({"id": [1], "name": ["a"]}), "products", key="id")
    driver = TestDriver(app)
    driver.pipe("ids", [{"id": "x"}])
    driver.crash()
    create = Log.create_commit

    def stored_but_not_answered(log: Log, commit: Commit) -> None:
        create(log, commit)
        raise StorageUnavailable("no answer")

    due = frozenset(driver._static.due())
    assert due == {"products"}
    with monkeypatch.context() as patched:
        patched.setattr(Log, "create_commit", stored_but_not_answered)
        with pytest.raises(StorageUnavailable):
            driver.pipe("ids", [{"id": "y"}])
    driver._driver.advance(lambda step: driver._compute_idle(due, step))
    assert dict(driver.store("products").items()) == {1: {"name": "a"}}
