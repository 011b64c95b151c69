"""Which sub-topologies share one Spark job: those of one stage.

A job costs the driver and the workers time however few rows it has. Sub-topologies whose keys have the same types have
the rows of a key in the same partition, so one Python task can run several of them on its partition, one after the
other. A stage consists of such sub-topologies. One that reads another's output by another key, or after more steps, has
to wait for a shuffle and is in a later stage.

    stage 0   buyers (a table) ─► joined ─► small-orders        totals
    stage 1   what reads one of them by another key
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

Stage = tuple[str, ...]
"""The sub-topologies of a stage, in the order in which they run."""


@dataclass(frozen=True)
class StagePlace:
    """What decides with which others a sub-topology can run."""

    partitioned_by: Hashable | None
    """The types of its key and its number of partitions; None if it can't share a job."""
    after: Collection[str] = ()
    """The sub-topologies that run before it."""
    beside: Collection[str] = ()
    """Those of them that may run in the same task, right before it."""


def stages_of(places: Mapping[str, StagePlace]) -> list[Stage]:
    """The stages, in an order in which they can run. `places` are in the order of declaration.

    >>> table, join = StagePlace(("bigint", 2)), StagePlace(("bigint", 2), {"table"}, {"table"})
    >>> rekeyed = StagePlace(("bigint", 2), {"join"})
    >>> stages_of({"table": table, "join": join, "rekeyed": rekeyed, "global": StagePlace(None)})
    [('table', 'join'), ('global',), ('rekeyed',)]
    """
    levels: dict[str, int] = {}
    found: dict[tuple[int, Hashable], list[str]] = {}
    for name, place in places.items():
        alone = place.partitioned_by is None
        near = {each for each in place.beside if not alone and places[each].partitioned_by == place.partitioned_by}
        levels[name] = max((levels[each] + (each not in near) for each in place.after), default=0)
        found.setdefault((levels[name], name if alone else (place.partitioned_by,)), []).append(name)
    return [tuple(found[key]) for key in sorted(found, key=lambda key: key[0])]
