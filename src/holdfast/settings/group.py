"""The settings of the group: heartbeats, sessions, and where tasks are placed."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.settings.declare import Between, InKafkaStreams, Section
from holdfast.settings.units import Duration


@dataclass(frozen=True, kw_only=True, repr=False)
class GroupSettings(Section):
    """How the instances of an app find out about each other, and where its tasks are placed."""

    section: ClassVar[str] = "group"

    heartbeat_interval: Annotated[
        Duration,
        "How often an instance writes its heartbeat to the log. With more than ten instances the interval is longer, "
        "in proportion to their number, up to a third of the session timeout. See docs/operations.md for what it costs "
        "on object storage.",
        InKafkaStreams("`heartbeat.interval.ms`"),
        Between("50ms", "10m"),
    ] = Duration("2s")
    session_timeout: Annotated[
        Duration,
        "How long an instance may be silent before its tasks are placed elsewhere. One that returns earlier finds its "
        "tasks and its local state. Tasks and queries don't wait for it: they read standbys at once.",
        InKafkaStreams("`session.timeout.ms`"),
        Between("200ms", "1d"),
    ] = Duration("10s")
    drain_timeout: Annotated[
        Duration,
        "How long an instance that runs as a server and gets SIGTERM waits at most until others have taken over its "
        "tasks. It serves them meanwhile.",
        InKafkaStreams("none: an instance leaves at once"),
        Between("0s", "1h"),
    ] = Duration("25s")
    warmups: Annotated[
        int,
        "How many additional replicas may be restored at a time, so that tasks can move to them.",
        InKafkaStreams("`max.warmup.replicas`"),
        Between(1, 1_000),
    ] = 2
    spread_by: Annotated[
        str,
        "The tags of instances over which the replicas of a task are spread, most important first, separated by "
        "commas: `zone,rack`.",
        InKafkaStreams("`rack.aware.assignment.tags`"),
    ] = ""
    assignor: Annotated[
        str | None,
        "Your own function that places tasks, as `module:function`. If not set: the built-in one.",
        InKafkaStreams("`task.assignor.class`"),
    ] = None
