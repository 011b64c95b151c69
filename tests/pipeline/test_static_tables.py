"""Static tables are read until this driver has committed a version itself."""

import pyarrow as pa

import holdfast as hf
from holdfast.pipeline.static_tables import StaticTables
from holdfast.testing import records
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
