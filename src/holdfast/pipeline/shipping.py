"""Sends a user's classes to Spark's workers.

Classes in an importable module are pickled by name. Those in the script or notebook itself, `__main__`, can't be
imported by a worker and are pickled by value. Spark's pickler does that for plain classes, with four faults that are
corrected here: a `msgspec.Struct` loses its fields, a TypedDict can't be unpickled, annotations stay text that a worker
can't resolve, and `dataclasses.MISSING` becomes another object, so that a field without a default seems to have one.
"""

import dataclasses
import inspect
import io
import types
import typing
from functools import lru_cache
from typing import Any

import msgspec
from pyspark import cloudpickle

from holdfast.errors import USER_ERRORS, HoldfastError, TopologyError

_MAIN = "__main__"
_CACHE = "__msgspec_cache__"
_OWN = frozenset({_CACHE, "__dict__", "__weakref__", "__doc__", "__match_args__", "__signature__", "__annotations__"})


def ship(code: object) -> bytes:
    """Pickles classes, or an object with classes in it."""
    sink = io.BytesIO()
    try:
        _Pickler(sink).dump(code)  # type: ignore[no-untyped-call]
    except HoldfastError:
        raise
    except USER_ERRORS as error:  # pickling runs the user's code
        raise TopologyError(
            f"A processor can't be sent to Spark's workers: {error}. Keep connections, locks and sessions out of the "
            f"class and of the globals that it uses; open them in init(). It was {code}."
        ) from error
    return sink.getvalue()


@lru_cache(maxsize=64)
def unship(data: bytes) -> Any:
    """Unpickles it. The same bytes give the same classes, so caches by class stay valid."""
    return cloudpickle.loads(data)


class _Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if typing.is_typeddict(obj) and _is_local(obj):
            return _typed_dict, (obj.__name__, obj.__qualname__, obj.__module__, _keys(obj))
        if isinstance(obj, type) and _is_local(obj):
            if issubclass(obj, msgspec.Struct):
                return _empty_struct, _skeleton(obj), _members(obj), None, None, _fill
            _resolve(obj)
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)  # msgspec creates it again
        if obj is dataclasses.MISSING:
            return _missing, ()
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _keys(obj: Any) -> dict[str, Any]:
    """The keys of a TypedDict and their types, each with whether it is required."""
    found = {}
    for name, hint in typing.get_type_hints(obj, include_extras=True).items():
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
            (hint,) = typing.get_args(hint)
        found[name] = typing.Required[hint] if name in obj.__required_keys__ else typing.NotRequired[hint]
    return found


def _typed_dict(name: str, qualname: str, module: str, keys: dict[str, Any]) -> Any:
    made = typing.TypedDict(name, keys)  # type: ignore[misc]
    made.__qualname__, made.__module__ = qualname, module
    return made


def _missing() -> object:
    return dataclasses.MISSING


def _is_local(obj: type) -> bool:
    return obj.__module__ == _MAIN or "<locals>" in obj.__qualname__


def _resolve(obj: type) -> None:
    """Replaces annotations that are text by their types, while the names can still be resolved."""
    texts = inspect.get_annotations(obj)
    if any(isinstance(text, str) for text in texts.values()):
        try:
            hints = typing.get_type_hints(obj, include_extras=True)
        except NameError:
            return  # names local to a function; whatever needs the types raises later
        obj.__annotations__ = {name: hints[name] for name in texts}


def _skeleton(obj: type[msgspec.Struct]) -> tuple[Any, ...]:
    """The arguments for a Struct with the same fields. Types and methods follow: they may name the class itself."""
    config = obj.__struct_config__
    names = ("frozen", "eq", "order", "array_like", "gc", "omit_defaults", "forbid_unknown_fields", "weakref", "dict")
    options = {name: getattr(config, name) for name in names}
    options["cache_hash"] = getattr(config, "cache_hash", False)
    options["tag"], options["tag_field"] = config.tag, config.tag_field
    fields = [
        (field.name, field.encode_name, field.default, field.default_factory) for field in msgspec.structs.fields(obj)
    ]
    keyword = {p.name for p in inspect.signature(obj).parameters.values() if p.kind is p.KEYWORD_ONLY}
    return obj.__name__, obj.__qualname__, obj.__module__, fields, keyword, options


def _members(obj: type[msgspec.Struct]) -> dict[str, Any]:
    """Methods, properties and constants, including those of Struct base classes, and the fields' types."""
    members: dict[str, Any] = {}
    for each in reversed(obj.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            members |= {
                name: value
                for name, value in vars(each).items()
                if name not in _OWN
                and not name.startswith("__struct_")
                and not isinstance(value, types.MemberDescriptorType)
            }
    members["__annotations__"] = typing.get_type_hints(obj, include_extras=True)
    members["__doc__"] = obj.__doc__
    return {name: value for name, value in members.items() if name not in ("__module__", "__qualname__")}


def _empty_struct(
    name: str, qualname: str, module: str, fields: list[Any], keyword: set[str], options: dict[str, Any]
) -> type[msgspec.Struct]:
    positional = [_field(*each) for each in fields if each[0] not in keyword]
    made = msgspec.defstruct(name, positional, module=module, **options)
    if keyword:
        last = [_field(*each) for each in fields if each[0] in keyword]
        made = msgspec.defstruct(name, last, bases=(made,), module=module, kw_only=True, **options)
    made.__qualname__ = qualname
    return made


def _field(name: str, encoded: str, default: Any, factory: Any) -> tuple[Any, ...]:
    extra = {} if encoded == name else {"name": encoded}
    if factory is not msgspec.NODEFAULT:
        return name, Any, msgspec.field(default_factory=factory, **extra)
    return name, Any, msgspec.field(default=default, **extra)


def _fill(made: type[msgspec.Struct], members: dict[str, Any]) -> type[msgspec.Struct]:
    for name, value in members.items():
        setattr(made, name, value)
    return made
