"""Settings: one typed value, put together from code, a file and the environment."""

from holdfast.settings.declare import About, Between, Section, Setting
from holdfast.settings.load import LoadedSettings, load, variable_of
from holdfast.settings.model import Settings, all_settings, sections
from holdfast.settings.sections import (
    BatchSettings,
    LogSettings,
    MemorySettings,
    Restore,
    RestSettings,
    RetrySettings,
    SnapshotSettings,
    SparkSettings,
    StateSettings,
)
from holdfast.settings.units import RedactedOptions, format_duration, format_size, parse_duration, parse_size, redact

__all__ = [
    "About",
    "BatchSettings",
    "Between",
    "LoadedSettings",
    "LogSettings",
    "MemorySettings",
    "RedactedOptions",
    "RestSettings",
    "Restore",
    "RetrySettings",
    "Section",
    "Setting",
    "Settings",
    "SnapshotSettings",
    "SparkSettings",
    "StateSettings",
    "all_settings",
    "format_duration",
    "format_size",
    "load",
    "parse_duration",
    "parse_size",
    "redact",
    "sections",
    "variable_of",
]
