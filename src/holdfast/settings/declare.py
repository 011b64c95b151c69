"""How a setting is declared: a dataclass field whose annotation has its meaning and its allowed values.

    retention: Annotated[Duration, "How long ... are kept.", InKafkaStreams("`retention.ms`"), Between("0s")]

The annotation is used by the check below, by `load`, by `holdfast config` and by docs/configuration.md, so a setting is
described in one place. An impossible value is rejected when the section is created, in code as from a file.
"""

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from holdfast.errors import SettingsError, did_you_mean
from holdfast.settings.units import (
    Duration,
    OptionMap,
    RedactedOptions,
    Size,
    format_duration,
    format_size,
    parse_duration,
    redact,
)


@dataclass(frozen=True)
class InKafkaStreams:
    """The counterpart of a setting in Kafka Streams, or `none: ` and why there is none."""

    counterpart: str


@dataclass(frozen=True)
class Between:
    """The range of a number, a size or a duration, including both ends."""

    lowest: float | str
    highest: float | str | None = None

    def __contains__(self, value: Any) -> bool:
        low, high = self._like(value, self.lowest), self._like(value, self.highest)
        return bool(low <= value and (high is None or value <= high))

    @staticmethod
    def _like(value: Any, bound: Any) -> Any:
        return parse_duration(bound) if isinstance(value, timedelta) and isinstance(bound, str) else bound

    def words(self, show: Any = str) -> str:
        def shown(bound: float | str) -> str:
            return bound if isinstance(bound, str) else str(show(bound))

        if self.highest is None:
            return f"at least {shown(self.lowest)}"
        return f"from {shown(self.lowest)} to {shown(self.highest)}"


@dataclass(frozen=True)
class Setting:
    """One setting, as a section declares it."""

    name: str
    type: Any
    meaning: str
    kafka: str
    between: Between | None
    default: Any

    @property
    def is_optional(self) -> bool:
        return type(None) in get_args(self.type)

    @property
    def base_type(self) -> Any:
        """The type without `| None` and words: int, float, bool, str, a Literal, Duration, Size or OptionMap."""
        if get_origin(self.type) not in (Union, UnionType):
            return self.type
        return next(t for t in get_args(self.type) if t is not type(None) and get_origin(t) is not Literal)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that are allowed instead of a number, as in `int | Literal["external"]`."""
        if get_origin(self.type) not in (Union, UnionType):
            return ()
        return tuple(word for t in get_args(self.type) if get_origin(t) is Literal for word in get_args(t))

    @property
    def allowed(self) -> str:
        """The allowed values, as text."""
        base = self.base_type
        if get_origin(base) is Literal:
            words = " or ".join(f'"{choice}"' for choice in get_args(base))
        else:
            words = _TYPE_WORDS[base]
        if self.between is not None:
            words += f", {self.between.words(format_size if base is Size else str)}"
        words += "".join(f', or "{word}"' for word in self.words)
        return words + (", or not set" if self.is_optional else "")

    def show(self, value: Any) -> str:
        """A value as a user would write it, without secrets."""
        match value:
            case None:
                return ""
            case bool():
                return str(value).lower()
            case timedelta():
                return format_duration(value)
            case RedactedOptions():
                return ", ".join(f"{name}={text}" for name, text in value.shown().items())
            case int() if self.base_type is Size:
                return format_size(value)
            case _ if isinstance(value, str) or self.base_type is str:  # also of a wrong type, for an error
                return redact(self.name, str(value))
        return str(value)

    def check(self, value: Any, at: str) -> None:
        if (value is None and self.is_optional) or (isinstance(value, str) and value in self.words):
            return
        base = self.base_type
        if get_origin(base) is Literal:
            fits = value in get_args(base)
        elif base is float:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        elif base in (int, bool, str):
            fits = type(value) is base
        else:
            fits = True  # the field has parsed it
        if not fits or (self.between is not None and value not in self.between):
            raise SettingsError(f"{at} = {self.show(value)!r} is not allowed. It must be {self.allowed}.")


_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Duration: "a duration",
    Size: "a size",
    OptionMap: "names with text values",
}


@dataclass(frozen=True)
class Section:
    """A group of settings that checks itself when it is created."""

    section: ClassVar[str] = ""

    def __new__(cls, **given: object) -> Self:
        """Rejects an unknown name, with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known).strip() or f"There are {', '.join(known)}."
                raise SettingsError(f"{cls.__name__} has no setting {name!r}. {hint}")
        return super().__new__(cls)

    @classmethod
    def path(cls, name: str) -> str:
        """The full name of a setting in this section, such as `log.url`."""
        return f"{cls.section}.{name}" if cls.section else name

    @classmethod
    @cache
    def declared(cls) -> dict[str, Setting]:
        """The section's own settings by name, without those of nested sections."""
        found = {}
        hints = get_type_hints(cls, include_extras=True)
        for f in fields(cls):
            hint = hints[f.name]
            if get_origin(hint) is Annotated:
                base, *extras = get_args(hint)
                meaning, kafka, *rest = extras
                found[f.name] = Setting(f.name, base, meaning, kafka.counterpart, rest[0] if rest else None, f.default)
        return found

    def __repr__(self) -> str:
        """The values without secrets: an address can contain a password, as an option can."""
        own = self.declared()
        shown = [
            f"{f.name}={own[f.name].show(getattr(self, f.name))!r}"
            if f.name in own
            else f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __post_init__(self) -> None:
        for name, setting in self.declared().items():
            setting.check(getattr(self, name), self.path(name))
