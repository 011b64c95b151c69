"""An app's topology and settings, as its log and its tasks need them."""

import msgspec

from holdfast.log.appfile import AppSpec, EndpointSpec, SubTopologySpec, effective
from holdfast.log.log import Log
from holdfast.pipeline.task import Limits
from holdfast.settings.model import Settings
from holdfast.topology.endpoints import check_endpoints
from holdfast.topology.topology import Topology

_RETURNED = 8 << 20
"""How many bytes of segments the tasks of a version may return to the driver, which writes them as one object."""
_RETURNED_BY_TASK = 64 << 10
"""How many of them one task may return, if the commit may have as many. A larger segment is an object of its own."""


def app_spec(id: str, partitions: int, topology: Topology) -> AppSpec:
    """The app for its file in the log."""
    check_endpoints(topology.endpoints, [store.name for store in topology.stores])
    endpoints = tuple(EndpointSpec(each.path, each.place, tuple(sorted(each.reads))) for each in topology.endpoints)
    return AppSpec(
        id=id,
        partitions=partitions,
        stores=topology.stores,
        subtopologies=tuple(
            SubTopologySpec(each.name, each.number, tuple(sorted(store.name for store in each.stores)))
            for each in topology.subtopologies
        ),
        endpoints=endpoints or msgspec.UNSET,
    )


def adopt(log: Log, topology: Topology) -> None:
    """Lets a topology take over what its log has recorded."""
    numbers = {each.name: each.number for each in log.app.subtopologies}
    topology.adopt(numbers, lambda spec: effective(log.app, spec))


def limits_of(settings: Settings, subtopologies: int) -> Limits:
    """The limits of an app's tasks."""
    batch, partitions = settings.batch, settings.partitions
    tasks = partitions * subtopologies
    share = settings.log.inline_bytes // tasks
    return Limits(
        partitions=partitions,
        chunk_rows=batch.segment_rows,
        inline_limit=max(share, min(_RETURNED // tasks, _RETURNED_BY_TASK, settings.log.inline_bytes)),
        inline_share=share,
        max_ahead_millis=round(batch.max_ahead.total_seconds() * 1000),
        state_bytes=batch.state_bytes,
        rewrite_entries=batch.rewrite_entries,
    )
