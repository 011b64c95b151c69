"""A store whose key is not the stream's key: an entry is in the partition that wrote it."""

from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task import Limits
from holdfast.stores.access import Now
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.topology.events import EventShape
from holdfast.topology.processor import specs_of
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of

KEY = Schema.of(user="string")


class Audited(hf.Processor):
    """An audit trail by event id, which is a text as the user is."""

    users = hf.KeyValueStore("users", value=int)
    audit = hf.KeyValueStore("audit", value=str, other_key=True)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.users[key] = self.users.get(key, 0) + 1
        self.audit[event.id] = f"{self.audit.get(event.id, '')}{key} "


class Watched(ReplicaState):
    """Notes which keys are read."""

    def __init__(self, *stores: str) -> None:
        super().__init__(*stores)
        self.keys: dict[str, set[bytes]] = {name: set() for name in stores}

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.keys[store].update(keys.to_pylist())
        return super().get(store, keys)


def run(task: TaskId, state: Watched, *users: str) -> dict[str, dict[str, Any]]:
    """One version in which each user of a partition sends the event e-1."""
    log = log_of(*(spec for _, spec in specs_of(Audited)))
    work = ProcessingWork(
        subtopology=0,
        version=Version(1),
        now=Now(1_000),
        name="audited",
        key=KEY,
        stores=specs_of(Audited),
        outputs=(),
        columns=RecordColumns(event=("c0", "c1"), keys=("c0",), time=None),
        limits=Limits(2, 1_000, 1 << 20, state_bytes=1 << 20),
        code=ship(Code(Audited, EventShape(("user", "id")))),
    )
    records = {"c0": list(users), "c1": ["e-1"] * len(users), "_dead": pa.nulls(len(users), pa.string())}
    state.apply(log, done(work.run(task, [pa.RecordBatch.from_pydict(records)], log, state)).segments)
    stores = (Audited.users, Audited.audit)
    return {store.name: dict(store.bind(state.stores[store.name], Now(0)).items()) for store in stores}


def test_two_partitions_that_write_one_key_have_one_entry_each() -> None:
    users = {partition_of(KEY, [name], 2): name for name in ("ann", "bob", "cleo", "dan")}
    assert len(users) == 2
    for partition, user in users.items():
        state = Watched("users", "audit")
        assert run(TaskId(0, partition), state, user, user) == {
            "users": {user: 2},
            "audit": {"e-1": f"{user} {user} "},
        }, "a partition sees its own entry and no other"


def test_the_keys_of_records_are_not_looked_up_in_it() -> None:
    state = Watched("users", "audit")
    user = next(name for name in ("ann", "bob", "cleo", "dan") if partition_of(KEY, [name], 2) == 0)
    run(TaskId(0, 0), state, user)
    assert encode_key(KEY, [user]) in state.keys["users"]
    assert encode_key(KEY, [user]) not in state.keys["audit"]
