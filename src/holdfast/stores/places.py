"""Places: the names by which other processes import a user's own class or function, `module:name`."""

import importlib
from collections.abc import Callable
from typing import Any

from holdfast.errors import USER_ERRORS, HoldfastError, TopologyError

_ON_EVERY_HOST = "Install the module, or put it on PYTHONPATH, on every host with an instance."


def object_at(place: str, what: str, next_step: str = _ON_EVERY_HOST) -> Any:
    """The object at a place. `what` says in errors what it is needed for, and `next_step` how to make it importable."""
    module, separator, name = place.partition(":")
    if not (module and separator and name):
        raise TopologyError(f"{what}: {place!r} is not a place. Write 'module:name'.")
    try:
        return getattr(importlib.import_module(module), name)
    except HoldfastError as error:  # it has its own next step
        raise TopologyError(f"{what}: {place!r}: {error}") from error
    except USER_ERRORS as error:  # importing a user's module runs it
        said = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise TopologyError(f"{what}: {place!r} can't be imported here: {said}. {next_step}") from error


def imported(place: str, what: str) -> Callable[..., Any]:
    """The class or function at a place. `what` says in errors what it is needed for.

    >>> imported("os.path:basename", "a test")("/a/b")
    'b'
    """
    found = object_at(place, what)
    if not callable(found):
        raise TopologyError(f"{what}: {place!r} is a {type(found).__name__} and can't be called.")
    called: Callable[..., Any] = found
    return called
