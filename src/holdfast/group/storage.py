"""The storage of a log, as the processes of a group use it for heartbeats and generations.

A call may take a third of a session at most. So one request that hangs, or an outage of a moment, costs a heartbeat and
not the membership: with the log's own limits it would take half a minute per attempt.
"""

from datetime import timedelta

from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.settings.group import GroupSettings
from holdfast.settings.sections import LogSettings, RetrySettings

_SHORTEST = timedelta(seconds=1)
"""A request to object storage may take half a second though all is well."""


def open_group_storage(url: str, log: LogSettings, group: GroupSettings, retry: RetrySettings) -> Storage:
    """Heartbeats and generations aren't fsynced: after a power failure they are written again."""
    within = max(_SHORTEST, group.session_timeout / 3)
    return open_storage(url, log.options, fsync=False, retry=retry, within=within)
