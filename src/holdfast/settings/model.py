"""All settings of an app as one value, with checks across sections."""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import unquote, urlsplit

from holdfast.errors import SettingsError
from holdfast.settings.declare import Between, InKafkaStreams, Section, Setting
from holdfast.settings.group import GroupSettings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import (
    BatchSettings,
    LogSettings,
    MemorySettings,
    RestoreSettings,
    RetrySettings,
    SnapshotSettings,
    SparkSettings,
    StateSettings,
)
from holdfast.settings.security import SecuritySettings
from holdfast.settings.sql import SqlSettings
from holdfast.settings.units import Duration, OptionMap, format_duration, format_size


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings(Section):
    """All settings of an app.

    >>> settings = Settings(partitions=8, restore=RestoreSettings(parallel_tasks=2), log=LogSettings(retention="2h"))
    >>> settings.log.retention, settings.log_url("pulse")
    (datetime.timedelta(seconds=7200), '.holdfast/pulse/log')
    """

    partitions: Annotated[
        int,
        "The number of partitions of the app's stores. It can't be changed once the log exists.",
        InKafkaStreams("none: the input topics determine it"),
        Between(1, 65_536),
    ] = 4
    instances: Annotated[
        int | Literal["external"],
        "The number of instances (processes) that `app.run()` starts. With `external` it starts none, and waits for "
        "those that run as servers: `holdfast instance --app ID --log URL`.",
        InKafkaStreams("`num.stream.threads`"),
        Between(1, 256),
    ] = 1
    standbys: Annotated[
        int,
        "The number of standby replicas per task, each on another instance. While an instance is down, tasks and "
        "queries read the standbys of its tasks. They take as much disk and memory as the active replicas. It must be "
        "smaller than the number of instances.",
        InKafkaStreams("`num.standby.replicas`"),
        Between(0, 255),
    ] = 0
    base_dir: Annotated[
        str,
        "The folder for the log, local state and Spark's checkpoint, unless they have settings of their own.",
        InKafkaStreams("none: only state is local there, see `state.dir`"),
    ] = "./.holdfast"
    on_new_checkpoint: Annotated[
        Literal["refuse", "restart_sources"],
        "What to do if the log has versions but Spark's checkpoint is new: `refuse` stops with the recorded "
        "positions in the message; `restart_sources` keeps the state and reads the sources from the start of "
        "the new checkpoint.",
        InKafkaStreams("`auto.offset.reset`"),
    ] = "refuse"
    on_error: Annotated[
        Literal["fail", "skip", "dead_letter"],
        "What happens to a record for which a processor raises or an expression fails: `fail` stops the app, `skip` "
        "counts it, `dead_letter` keeps it with the error. With the last two, everything the record did is undone. "
        "`process(..., on_error=)` sets it for one processor, `stream.on_error(...)` for the steps that follow.",
        InKafkaStreams("`processing.exception.handler`"),
    ] = "fail"
    returned_stores: Annotated[
        OptionMap,
        "What a store does that was removed and comes back: `continue` goes on without the versions it has missed, "
        "`start_over` starts it empty. A start with a returned store that isn't here is refused.",
        InKafkaStreams("none: a changelog topic is continued silently"),
    ] = OptionMap({})
    stop_timeout: Annotated[
        Duration,
        "How long `app.stop()` takes at most. The current batch may use half of this time, and is then interrupted: "
        "Spark repeats it at the next start. The rest is for sinks and instances, which are then given up or killed.",
        InKafkaStreams("none: an argument of `KafkaStreams.close()`"),
        Between("100ms", "1h"),
    ] = Duration("10s")

    log: LogSettings = field(default_factory=LogSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    state: StateSettings = field(default_factory=StateSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    rest: RestSettings = field(default_factory=RestSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, section in sections().items():
            if not isinstance(getattr(self, name), section):
                given = type(getattr(self, name)).__name__
                raise SettingsError(f"{name} = a {given} is not allowed. It must be a {section.__name__}.")
        _check_together(self)

    def absolute(self) -> "Settings":
        """These settings with absolute folders: Spark and instances may have another working directory."""
        log, state, checkpoint = self.log, self.state, self.spark.checkpoint
        relative = checkpoint is not None and not urlsplit(checkpoint).scheme
        return replace(
            self,
            base_dir=_absolute(self.base_dir),
            log=replace(log, url=_absolute_url(log.url)) if log.url else log,
            state=replace(state, dir=_absolute(state.dir)) if state.dir else state,
            spark=replace(self.spark, checkpoint=_absolute(checkpoint)) if checkpoint and relative else self.spark,
            security=replace(self.security, **_absolute_files(self.security)),
            rest=replace(self.rest, **_absolute_files(self.rest)),
        )

    def log_url(self, app: str) -> str:
        """The address of an app's log."""
        return self.log.url or str(Path(self.base_dir, app, "log"))

    def state_dir(self, app: str) -> Path:
        """The folder of an app's local state."""
        return Path(self.state.dir) if self.state.dir else Path(self.base_dir, app, "state")

    def checkpoint(self, app: str) -> str:
        """The folder of Spark's checkpoint of an app."""
        return self.spark.checkpoint or str(Path(self.base_dir, app, "checkpoint"))


def _absolute_url(url: str) -> str:
    """An address whose folder, if it is one of this machine, is absolute."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return _absolute(unquote(parts.path))
    return url if parts.scheme else _absolute(url)


def _absolute_files(section: Section) -> dict[str, Any]:
    """The files that a section names, as absolute paths."""
    files = {name: getattr(section, name) for name in section.declared() if name.endswith("_file")}
    return {name: _absolute(file) for name, file in files.items() if file is not None}


def _absolute(folder: str) -> str:
    return str(Path(folder).expanduser().absolute())


@cache
def sections() -> dict[str, type[Section]]:
    """The nested sections of Settings, by name."""
    hints = get_type_hints(Settings)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Section)}


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting by its full name, such as `partitions` or `log.url`."""
    found = dict(Settings.declared())
    for section in sections().values():
        found |= {section.path(name): setting for name, setting in section.declared().items()}
    return found


_ALWAYS_ON = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_HAVE_SETTINGS = {"spark.master": "spark.master", "spark.sql.streaming.checkpointLocation": "spark.checkpoint"}


def _check_together(settings: Settings) -> None:
    """Rejects values that are allowed on their own but not together."""
    if settings.retry.first > settings.retry.longest:
        first, longest = format_duration(settings.retry.first), format_duration(settings.retry.longest)
        raise SettingsError(
            f"retry.first = {first} is longer than retry.longest = {longest}. Lower one or raise the other."
        )
    if settings.group.session_timeout < 2 * settings.group.heartbeat_interval:
        interval, timeout = map(format_duration, (settings.group.heartbeat_interval, settings.group.session_timeout))
        raise SettingsError(
            f"group.session_timeout = {timeout} is shorter than two heartbeats, group.heartbeat_interval = {interval}: "
            "one that is late would count as a lost instance. Raise the timeout or lower the interval."
        )
    in_flight = settings.restore.parallel_tasks * settings.restore.batch_bytes
    if in_flight > settings.memory.limit:
        raise SettingsError(
            f"restore.parallel_tasks times restore.batch_bytes is {format_size(in_flight)}, more than memory.limit = "
            f"{format_size(settings.memory.limit)}. Lower one of the first two or raise the limit."
        )
    own = 0 if settings.instances == "external" else settings.instances
    if own and settings.standbys >= own:
        raise SettingsError(
            f"standbys = {settings.standbys} needs instances = {settings.standbys + 1} or more, and instances = "
            f"{settings.instances}: replicas of a task are on different instances. Raise one or lower the other."
        )
    rest = settings.rest
    if rest.port and rest.driver_metrics_port in range(rest.port, rest.port + own):
        raise SettingsError(
            f"rest.driver_metrics_port = {rest.driver_metrics_port} is the port of an instance: one port each, by "
            f"rest.port = {rest.port} and instances = {settings.instances}. Use another port, or 0 for any."
        )
    for store, choice in settings.returned_stores.items():
        if choice not in ("continue", "start_over"):
            raise SettingsError(
                f"returned_stores has {choice!r} for {store!r}. Use 'continue' to go on without the versions that the "
                "store has missed, or 'start_over' to start it empty."
            )
    for key in _ALWAYS_ON:
        if settings.spark.config.get(key, "true").lower() != "true":
            raise SettingsError(
                f"spark.config has {key} = {settings.spark.config[key]}. Spark could then mix two runs of a stage and "
                "count records twice. Remove it."
            )
    for key, name in _HAVE_SETTINGS.items():
        if key in settings.spark.config:
            raise SettingsError(f"spark.config has {key}. Use the setting {name} instead.")
