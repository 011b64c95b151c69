"""Warns about a processor that keeps data in its own attributes, where the next batch doesn't find it."""

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from types import MemberDescriptorType
from typing import Any, Final

from holdfast.topology.processor import Processor, stores_of

_CONTAINERS: Final = (list, dict, set, bytearray, deque)
"""What is often filled record by record."""

_MISSING: Final = object()


class AttributeLost(UserWarning):
    """A processor has set one of its own attributes while it processed a record."""


class AttributeWatch:
    """Compares the attributes of a processor before and after each call. It warns once per attribute.

    An attribute that `__init__` or `init` sets is fine: both are called for each batch. So is a `cached_property`: the
    next object computes it again.
    """

    def __init__(self, processor: type[Processor]) -> None:
        self._name = processor.__name__
        self._ignored = {*stores_of(processor), *_cached_properties(processor)}
        self._told: set[str] = set()

    @contextmanager
    def watched(self, processor: Processor, where: str) -> Iterator[None]:
        if not _classes(type(processor)):
            yield
            return
        before = self._attributes(processor)
        yield
        after = self._attributes(processor)
        for attribute, value in after.items():
            if attribute not in self._told and _changed(before.get(attribute, _MISSING), value):
                self._told.add(attribute)
                warnings.warn(
                    f"{self._name}.{attribute} was changed in {where}. The object lives for one batch of one "
                    "partition, so the next batch doesn't see it: use a store.",
                    AttributeLost,
                    stacklevel=4,
                )

    def _attributes(self, processor: Processor) -> dict[str, Any]:
        """The object's own attributes, and the containers among those of its class."""
        found: dict[str, Any] = {}
        for each in reversed(_classes(type(processor))):
            found |= {name: value for name, value in vars(each).items() if isinstance(value, _CONTAINERS)}
            slots = {name for name, value in vars(each).items() if isinstance(value, MemberDescriptorType)}
            found |= {name: getattr(processor, name) for name in slots if hasattr(processor, name)}
        found |= vars(processor)
        return {
            name: copy(value) if isinstance(value, _CONTAINERS) else value
            for name, value in found.items()
            if name not in self._ignored
        }


def _classes(processor: type[Processor]) -> tuple[type, ...]:
    """The user's own classes, not those that Holdfast has written for `top` and `reduce`."""
    own = processor.__mro__[: processor.__mro__.index(Processor)]
    return tuple(each for each in own if not each.__module__.startswith("holdfast."))


def _cached_properties(processor: type[Processor]) -> Iterator[str]:
    for each in _classes(processor):
        yield from (name for name, value in vars(each).items() if isinstance(value, cached_property))


def _changed(before: object, after: object) -> bool:
    if isinstance(after, _CONTAINERS):
        return before is _MISSING or before != after
    return before is not after
