"""Schema history: the schemas that a store's values have had, by number, and whether code can read them.

The type of a typed value declares its schema number (`typed_history`). The rows of an aggregate have no such type, so
the log numbers their schemas (`row_history`). In both cases a cell has the number of its schema, and the app's file has
the schema.
"""

from typing import Protocol

import msgspec

from holdfast.stores.schema import row_history, typed_history
from holdfast.stores.schema.compatibility import obstacles
from holdfast.stores.schema.text import parse
from holdfast.stores.spec import RowValues, StoreSpec


class _History(Protocol):
    """What the module of each form of values has."""

    def merged(self, log: StoreSpec, code: StoreSpec) -> StoreSpec: ...

    def effective(self, log: StoreSpec, code: StoreSpec) -> StoreSpec: ...

    def unreadable(self, log: StoreSpec, code: StoreSpec) -> list[str]: ...


def _history_of(spec: StoreSpec) -> _History:
    return row_history if isinstance(spec.value, RowValues) else typed_history


def merged(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec for the log when code starts: that of the code, with all that the log knows."""
    return _history_of(code).merged(log, _kept(log, code))


def effective(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec that code uses: its own, with all that the log knows."""
    return _history_of(code).effective(log, _kept(log, code))


def unreadable(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Why the code can't read stored values, one sentence each, with the next step."""
    return _history_of(code).unreadable(log, code)


def one_way(log: StoreSpec, code: StoreSpec) -> list[str]:
    """Which earlier code can't read the values of this code: it has to be stopped before this code starts."""
    if not code.schemas:
        return []
    own = code.schemas[-1]
    return [
        f"store {code.name!r}: code of schema {version.number} ({version.fields}) can't read what this code writes: "
        f"{'; '.join(found)}. Don't run both at once, and don't go back to it"
        for version in log.schemas
        if version.fingerprint != own.fingerprint and (found := obstacles(parse(own.fields), parse(version.fields)))
    ]


def _kept(log: StoreSpec, code: StoreSpec) -> StoreSpec:
    """The spec of the code, with what the log has decided once."""
    return msgspec.structs.replace(
        code,
        slice_ms=log.slice_ms or code.slice_ms,
        stream_key=code.stream_key or log.stream_key,
        after=log.after,
    )
