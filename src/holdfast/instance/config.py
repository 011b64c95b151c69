"""The configuration of an instance: its name, where its data is, and the settings' own sections.

It travels as one line of JSON on the instance's standard input, since the log's options and the token are secrets.
"""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar, get_type_hints

import msgspec

from holdfast.errors import SettingsError
from holdfast.settings.declare import Section
from holdfast.settings.group import GroupSettings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import (
    LogSettings,
    MemorySettings,
    RestoreSettings,
    RetrySettings,
    SnapshotSettings,
    StateSettings,
)
from holdfast.settings.security import SecuritySettings
from holdfast.settings.sql import SqlSettings
from holdfast.settings.units import RedactedOptions, format_duration

S = TypeVar("S")


class Role(StrEnum):
    """What a replica is for."""

    ACTIVE = "active"
    """The first replica to be asked, and the one that saves snapshots."""
    STANDBY = "standby"
    """Another replica of a task whose active one is elsewhere. It is read too, and saves no snapshots."""


class Phase(StrEnum):
    """What a replica is doing."""

    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    app: str
    name: str
    """The id of the instance in its group."""
    log_url: str
    app_file: int | None = None
    """The number of the app file that the driver uses: no commit may name it yet. None for that of the newest commit,
    until a generation names one."""
    state_dir: str
    """The folder of this instance alone."""
    tasks: dict[str, Role] = {}
    """Tasks that it hosts from its start, where it is in no group: for measurements and tests."""
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    """The host, or host:port, by which others reach it, if that isn't what it binds to."""
    tags: dict[str, str] = {}
    embedded: bool = True
    """Whether an app has started it. It then ends with the app, and never coordinates."""
    standbys: int = 0
    poll_seconds: float = 1.0
    stop_seconds: float = 5.0
    ready_fd: int = 1
    """The file descriptor for the line that says where the instance listens: standard output unless the starter has
    a pipe of its own for it, which modules of the user's can't print to."""
    parent: int = 0
    """The process that started the instance, which ends with it; 0 if only the end of standard input matters."""


class InstanceConfig(_Identity, frozen=True, kw_only=True):
    """Everything an instance needs to start. Which stores there are is in the log.

    >>> config = InstanceConfig(app="game", name="game-0", log_url="log", app_file=1, state_dir="state")
    >>> decode(encode(config)) == config
    True
    """

    log: LogSettings = LogSettings()
    memory: MemorySettings = MemorySettings()
    state: StateSettings = StateSettings()
    restore: RestoreSettings = RestoreSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    group: GroupSettings = GroupSettings()
    rest: RestSettings = RestSettings()
    sql: SqlSettings = SqlSettings()
    retry: RetrySettings = RetrySettings()
    security: SecuritySettings = SecuritySettings()


_SECTIONS: Mapping[str, type[Section]] = {
    name: found
    for name, found in get_type_hints(InstanceConfig).items()
    if isinstance(found, type) and issubclass(found, Section)
}


def encode(config: InstanceConfig) -> bytes:
    plain: dict[str, Any] = {name: getattr(config, name) for name in _Identity.__struct_fields__}
    for name in _SECTIONS:
        section = getattr(config, name)
        plain[name] = {each.name: _plain(getattr(section, each.name)) for each in fields(section)}
    return msgspec.json.encode(plain)


def decode(line: bytes) -> InstanceConfig:
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
        identity = msgspec.convert(found, _Identity)
        sections: dict[str, Any] = {
            name: unchecked(section, **found.get(name, {})) for name, section in _SECTIONS.items()
        }
    except (msgspec.MsgspecError, SettingsError, TypeError, AttributeError) as error:
        # Not the line itself: it may hold credentials of the log.
        raise SettingsError(
            f"The configuration on standard input is not an InstanceConfig: {error}. Start the instance with the "
            "release of Holdfast that the app has."
        ) from None
    return InstanceConfig(**msgspec.structs.asdict(identity), **sections)


def unchecked(section: type[S], **values: object) -> S:
    """A section of settings without the checks of their bounds, which were made where the settings were read."""
    made = section()
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _plain(value: object) -> object:
    match value:
        case timedelta():
            return format_duration(value)
        case RedactedOptions():
            return dict(value)
    return value
