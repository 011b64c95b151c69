"""Loads settings from code, a file and the environment, and records where every value comes from.

The later source wins: code, then `holdfast.toml`, then `HOLDFAST_...` variables. So an operator can change what the
author of an app wrote without changing code. An unknown name is rejected with the nearest known one.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from holdfast.errors import SettingsError, did_you_mean
from holdfast.settings.declare import Section, Setting
from holdfast.settings.model import Settings, all_settings, sections
from holdfast.settings.units import Duration, OptionMap, RedactedOptions, Size

DEFAULT_FILE = Path("holdfast.toml")
FILE_VARIABLE = "HOLDFAST_CONFIG"
PREFIX = "HOLDFAST_"

LOG_VARIABLE = "HOLDFAST_LOG"
"""The address of the log, for apps and commands: short for `HOLDFAST_LOG__URL`, which wins."""

# Variables with this prefix that aren't settings: of clients, for tests, and those that Kubernetes sets for a service
# "holdfast".
_OTHER_VARIABLES = re.compile(
    r"HOLDFAST_(CONFIG|APP|CLIENT_.*|FAULT|FAULT_DIR|VERSITYGW|(TEST|BENCH|CRASH)(_.*)?|SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)"
)


@dataclass(frozen=True)
class LoadedSettings:
    """The settings of an app, and the origin of each by its full name.

    An origin is "default", "code", the file's path, or the name of an environment variable.
    """

    settings: Settings
    origins: dict[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value (as a user would write it, without secrets) and origin of every setting."""
        return [
            (name, setting.show(_value(self.settings, name)), self.origins[name])
            for name, setting in all_settings().items()
        ]


def load(code: Settings | None = None, file: Path | None = None, env: Mapping[str, str] = {}) -> LoadedSettings:
    """Loads the settings from `code`, then the file, then `env` (pass `os.environ`).

    Without `file`, HOLDFAST_CONFIG names it; otherwise `holdfast.toml` in the working directory is read if it exists.

    >>> loaded = load(Settings(partitions=8), env={"HOLDFAST_BATCH__COMMIT_INTERVAL": "10s"})
    >>> loaded.settings.partitions, loaded.origins["partitions"]
    (8, 'code')
    >>> loaded.settings.batch.commit_interval, loaded.origins["batch.commit_interval"]
    (datetime.timedelta(seconds=10), 'HOLDFAST_BATCH__COMMIT_INTERVAL')
    """
    if code is not None and not isinstance(code, Settings):
        raise SettingsError(f"settings= is a {type(code).__name__}. Give it hf.Settings(partitions=...).")
    given, defaults = code or Settings(), Settings()
    values = {name: _value(given, name) for name in all_settings()}
    origins = {name: "default" if values[name] == _value(defaults, name) else "code" for name in values}
    for name, (value, origin) in _from_file(_file(file, env)).items():
        values[name], origins[name] = value, origin
    for name, (value, origin) in _from_environment(env, values).items():
        values[name], origins[name] = value, origin
    return LoadedSettings(_build(values, origins), origins)


def _value(settings: Settings, name: str) -> Any:
    section, _, field = name.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, field)


def _build(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    parts = {
        name: _made(section, {f: values[section.path(f)] for f in section.declared()}, name, origins)
        for name, section in sections().items()
    }
    own = {name: values[name] for name in Settings.declared()}
    return _made(Settings, own | parts, "", origins)


S = TypeVar("S", bound=Section)


def _made(section: type[S], arguments: Mapping[str, Any], name: str, origins: Mapping[str, str]) -> S:
    """Creates a section; an error also names the origins of its values."""
    try:
        return section(**arguments)
    except SettingsError as error:
        prefix = f"{name}." if name else ""
        named = sorted(
            {
                origin
                for full, origin in origins.items()
                if full.startswith(prefix) and origin not in ("default", "code") and _mentions(str(error), full)
            }
        )
        raise SettingsError(f"{error} (from {', '.join(named)})" if named else str(error)) from None


def _mentions(message: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", message) is not None


def _file(file: Path | None, env: Mapping[str, str]) -> Path | None:
    if file is None and env.get(FILE_VARIABLE):
        file = Path(env[FILE_VARIABLE])
    if file is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not file.is_file():
        raise SettingsError(f"There is no settings file {file}. Pass the path of a TOML file, or none.")
    return file


def _from_file(file: Path | None) -> dict[str, tuple[Any, str]]:
    if file is None:
        return {}
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid TOML: {error}. Fix it there.") from None
    except OSError as error:
        raise SettingsError(f"{file} can't be read: {error.strerror}. Make it readable or remove it.") from None
    found = {}
    for name, value in document.items():
        if name in sections() and isinstance(value, dict):
            for inner, inner_value in value.items():
                found[_known(f"{name}.{inner}", f"in {file}")] = inner_value
        else:
            found[_known(name, f"in {file}")] = value
    return {name: (value, str(file)) for name, value in found.items()}


def _from_environment(env: Mapping[str, str], so_far: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    entries: dict[str, dict[str, str]] = {}
    for variable, text in sorted(env.items()):
        if not variable.startswith(PREFIX) or _OTHER_VARIABLES.fullmatch(variable):
            continue
        parts = ["LOG", "URL"] if variable == LOG_VARIABLE else variable.removeprefix(PREFIX).split("__", 2)
        if len(parts) == 3:  # one entry of a mapping: HOLDFAST_LOG__OPTIONS__AWS_REGION
            name = _known(".".join(parts[:2]).lower(), f"of the variable {variable}")
            if all_settings()[name].base_type is not OptionMap:
                raise SettingsError(f"{variable} has one part too many: {name} is one value. Set {variable_of(name)}.")
            entries.setdefault(name, {})[parts[2].lower() if parts[2].isupper() else parts[2]] = text
        else:
            name = _known(".".join(parts).lower(), f"of the variable {variable}")
            found[name] = (_read(all_settings()[name], text, variable), variable)
    for name, added in entries.items():
        whole = RedactedOptions(found[name][0] if name in found else so_far[name])
        found[name] = (RedactedOptions({**whole, **added}), f"{variable_of(name)}__...")
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("batch.commit_interval")
    'HOLDFAST_BATCH__COMMIT_INTERVAL'
    """
    return PREFIX + name.replace(".", "__").upper()


def _known(name: str, place: str) -> str:
    known = all_settings()
    if name in known:
        return name
    last = name.rpartition(".")[2]
    elsewhere = next((full for full in known if full.rpartition(".")[2] == last), name)
    hint = did_you_mean(elsewhere, known).strip() or "`holdfast config` lists all settings."
    if name in sections():
        hint = f"It is a group of settings, such as {next(n for n in known if n.startswith(name + '.'))}."
    raise SettingsError(f"There is no setting {name!r} ({place}). {hint}")


def _read(setting: Setting, text: str, variable: str) -> Any:
    """A text from the environment as a value of the setting's type. Empty text unsets an optional setting."""
    base = setting.base_type
    if setting.is_optional and text == "":
        return None
    if text in setting.words:
        return text
    try:
        if base is bool:
            return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}[text.lower()]
        if base in (int, float):
            return base(text.replace("_", ""))
        if base is OptionMap:
            return RedactedOptions(json.loads(text))
    except (KeyError, ValueError, SettingsError):
        shown = "its value" if base is OptionMap else repr(text)
        what = (
            'a JSON object with text values, such as {"region": "eu-central-1"}'
            if base is OptionMap
            else setting.allowed
        )
        raise SettingsError(f"{variable}: {shown} is not allowed. It must be {what}.") from None
    if base is Size and text.isdecimal():
        return int(text)
    assert base in (str, Duration, Size) or get_origin(base) is Literal, get_args(base)
    return text
