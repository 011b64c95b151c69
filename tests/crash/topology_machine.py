"""The machine of the crash matrix with a whole topology: joins by a foreign key, and as of the time of a record.

A record's number says what it changes: below 100 it is the order of a customer, from 100 on a city of the customer. An
order's key is its tens, and its amount the number; a number that ends with 9 deletes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.log.appfile import AppSpec
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.local_tasks import LocalTasks
from holdfast.pipeline.starting import adopt, app_spec, limits_of
from holdfast.pipeline.static_tables import StaticTables
from holdfast.pipeline.task_state import EmptyState, TaskState
from holdfast.stores.spec import StoreSpec
from holdfast.testing import records as frame_of
from holdfast.testing.records import as_table
from holdfast.topology.outputs import Output
from holdfast.words import NOTHING, TaskId, Version
from tests.crash.machine import PARTITIONS, START, Machine, Record, ReplicaState

ORDERS = frame_of("id bigint, customer string, amount bigint, gone boolean, at timestamp")
CUSTOMERS = frame_of("name string, city bigint, gone boolean, at timestamp")
BEGIN = datetime.fromtimestamp(START / 1000, UTC)


def linked_app() -> hf.App:
    app = hf.App("app", settings=hf.Settings(partitions=PARTITIONS))
    orders = app.table(ORDERS, "orders", key="id", timestamp="at", deleted="gone")
    customers = app.table(CUSTOMERS, "customers", key="name", timestamp="at", deleted="gone", history="1h")
    orders.join(customers, on="customer", how="left", name="both", prefix="c_")
    stream = app.stream(ORDERS, key="id", timestamp="at", name="orders")
    then = stream.join(customers, on="customer", how="left", name="then", prefix="c_")
    then.to_stream().key_by("customer").group_by().aggregate(orders=hf.count(), city=hf.max("c_city")).store("cities")
    return app


@dataclass(frozen=True)
class AllReplicas(ReplicaState):
    """A task's stores, and those of the other tasks."""

    machine: "TopologyMachine"

    def of_task(self, task: TaskId) -> TaskState:
        return self.machine.state_of(task, self.version)


class TopologyMachine(Machine):
    """A machine that runs all tasks of an app."""

    def app_spec(self) -> AppSpec:
        self.topology = linked_app()._topology
        return app_spec("app", PARTITIONS, self.topology)

    def opened(self) -> None:
        adopt(self.log, self.topology)
        limits = limits_of(hf.Settings(partitions=PARTITIONS), 5)
        static = StaticTables.of(self.topology.subtopologies)
        self.tasks = [
            LocalTasks(self.topology.subtopologies, replace(limits, inline_limit=inline, chunk_rows=2), static)
            for inline in (64 << 10, 0)
        ]
        """Those of even versions, whose segments the driver stores together, and of odd ones."""

    def hosted(self) -> Mapping[TaskId, tuple[StoreSpec, ...]]:
        return {
            task: each.stores for each in self.topology.subtopologies if each.stores for task in each.tasks(PARTITIONS)
        }

    def output(self) -> Output:
        return self.topology.outputs["both"]

    def state_of(self, task: TaskId, version: Version) -> TaskState:
        if version == NOTHING or task not in self.replicas:
            return EmptyOrNone(self, version)
        return AllReplicas(self.replicas[task], version, self)

    def computed(self, records: Sequence[Record], step: Step) -> BatchResult:
        before = Version(step.version - 1)
        tasks = self.tasks[step.version % 2]
        return tasks.compute(self._tables(records), step, self.log, lambda task: self.state_of(task, before))

    def _tables(self, records: Sequence[Record]) -> dict[str, pa.Table]:
        orders, customers = [], []
        for player, number in records:
            at, gone = BEGIN + timedelta(seconds=self.done), number % 10 == 9
            if number < 100:
                row = {"id": number // 10, "customer": player or None, "amount": number, "gone": gone, "at": at}
                orders.append(row)
            else:
                customers.append({"name": player, "city": number, "gone": gone, "at": at})
        return {
            "orders": as_table(ORDERS, orders, "orders"),
            "customers": as_table(CUSTOMERS, customers, "customers"),
        }

    def state(self) -> Any:
        """What the stores have in all partitions, as bytes."""
        return {
            (task, store.name): dict(view.scan(store.name, b"", None))
            for task, view in self.views()
            for store in self.hosted()[task]
        }

    def sent(self) -> list[Any]:
        """The rows of each version that the sink of this process got."""
        return [
            sorted((row["id"], None if row["_deleted"] else (row["amount"], row["c_city"])) for row in rows)
            for _, rows in sorted(self.memory.versions.items())
        ]


class EmptyOrNone(EmptyState):
    """The state of a task without stores, or before the first version."""

    def __init__(self, machine: TopologyMachine, version: Version) -> None:
        self._machine, self._version = machine, version

    def of_task(self, task: TaskId) -> TaskState:
        return self if self._version == NOTHING else self._machine.state_of(task, self._version)
