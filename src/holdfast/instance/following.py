"""Replicas that are up to date move on to the next version together, in one loop on one thread.

What a version costs whatever its size is paid once: the fingerprints of all its keys are computed in one go, and no
task waits for a turn. A replica that can't follow (it is behind, its overlay is full, its changes can't be read) stays
where it is. Its turn decides what to do, meets the same error again, and reports it.
"""

from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.instance.replica import TIDY, Replica
from holdfast.instance.run import Run, index_together
from holdfast.log.commits import Commit


def follow(replicas: Sequence[Replica], commit: Commit) -> None:
    """Brings those of the replicas to a version that are at the one before it; first those that it changes."""
    moving: list[tuple[Replica, dict[str, Run]]] = []
    for replica in replicas:
        if commit.changes(replica.task) and replica.can_follow(commit):
            try:
                moving.append((replica, replica.changes_of(commit)))
            except HoldfastError:
                continue  # its turn meets the same error and reports it
    index_together([run for _, runs in moving for run in runs.values()])
    for replica, runs in moving:
        replica.follow(commit, runs)
    for replica in replicas:
        if not commit.changes(replica.task):
            replica.follow(commit, {})
    if commit.version % TIDY == 0:
        for replica, _ in moving:
            replica.tidy()
