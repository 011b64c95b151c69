"""Options of stores: those of all kinds, and helpers for those of single kinds.

The class of a kind turns its own options into fields of the spec (`Store.options`); `Store.spec_of` adds the common
ones. Durations are texts (`"6h"`) or timedeltas. Impossible options are rejected when the app is built, with the
numbers in the message. Each message begins with `where`: the declaration that has the option.

The layout depends on the spec alone: entries are in slices if `slice_ms` isn't 0. A store with both a TTL and
`max_entries`, or with `ttl_to_sinks`, isn't sliced: its entries are counted or their end is sent to sinks, so expired
ones are removed one by one, through the expiry index.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from holdfast.errors import SettingsError, TopologyError, did_you_mean
from holdfast.settings.units import format_duration, parse_duration
from holdfast.stores.engines.profiles import PROFILES
from holdfast.stores.engines.registry import ENGINES
from holdfast.stores.layouts.recency import MOST_ENTRIES
from holdfast.stores.layouts.slices import slice_ms_for
from holdfast.stores.spec import StoreSpec

Length = str | timedelta
"""A length of time as a user writes it."""

ROCKSDB: Final = "rocksdb"
MEMORY: Final = "memory"
BALANCED: Final = "balanced"

DAY_MS: Final = 86_400_000

Text = TypeVar("Text", bound=str)
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def common_fields(
    where: str,
    *,
    engine: str = ROCKSDB,
    durable: bool = True,
    everywhere: bool = False,
    other_key: bool = False,
    profile: str = BALANCED,
    rocksdb_options: str | None = None,
) -> dict[str, Any]:
    """The fields of a spec that the options of all kinds become.

    >>> common_fields("store 's'", profile="write-heavy")["engine"]
    'rocksdb'
    """
    return {
        "engine": known_engine(engine, where),
        "durable": durable,
        "everywhere": everywhere,
        "other_key": other_key,
        "profile": one_of(profile, tuple(PROFILES), "profile", where),
        "options_hook": _hook(rocksdb_options, where),
    }


def kept_for(keep_ms: int) -> dict[str, Any]:
    """The fields of a store that keeps its entries for this long, by the clock of its stream."""
    return {"retention_ms": keep_ms, "slice_ms": slice_ms_for(keep_ms)}


def check_options(given: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Raises for an option that this store doesn't have.

    >>> check_options({"max_entires": 3}, ["ttl", "max_entries"], "store('plays')")
    Traceback (most recent call last):
    ...
    holdfast.errors.TopologyError: store('plays'): there is no option max_entires=. Did you mean 'max_entries'?
    """
    options = sorted(known)
    for option, value in given.items():
        if option not in options:
            if option in _INSTEAD:
                raise TopologyError(f"{where}: {option}={_shown(value)} {_INSTEAD[option].format(_shown(value))}")
            hint = did_you_mean(option, options) or f"There are {', '.join(options)}."
            raise TopologyError(f"{where}: there is no option {option}=. {hint.strip()}")


_INSTEAD: Final = {
    "ttl": "is for single entries, and this store is limited by retention. Use retention={}.",
    "max_entries": "is for key-value stores. This store is limited by retention.",
    "retention": "is for windows, sessions and histories, which have times. For entries that expire some time after "
    "they were written use ttl={0}; for the former results of an aggregate use history={0}; for one value per span of "
    "time use a window store.",
    "history": "is for the store of an aggregate. To keep former values in a processor, use "
    "hf.VersionedKeyValueStore(..., retention={}).",
}
"""What to use instead of an option that only other kinds have."""


def millis(length: Length, option: str, where: str, *, shortest: int = 1) -> int:
    """A length of time in milliseconds, at least `shortest`.

    >>> millis("1h", "ttl", "store 's'")
    3600000
    """
    try:
        found = parse_duration(length) // timedelta(milliseconds=1)
    except SettingsError as error:
        raise TopologyError(f"{where}: {option}={_shown(length)}: {error}") from None
    if found < shortest:
        raise TopologyError(f"{where}: {option}={_shown(length)} is too short. Use {shortest}ms or more.")
    return found


def known_engine(engine: str, where: str) -> str:
    """An engine of Holdfast, or the place of a user's own."""
    if engine in ENGINES or _PLACE.fullmatch(engine):
        return engine
    raise TopologyError(
        f"{where}: engine={engine!r}: there are {', '.join(sorted(ENGINES))}. Name your own by its place, "
        "'module:Class'."
    )


def check_tuned(spec: StoreSpec, where: str) -> None:
    """Raises for a store in memory with options of RocksDB. A user's own engine may use them."""
    if spec.engine != MEMORY:
        return
    if spec.options_hook is not None:
        given = f"rocksdb_options={spec.options_hook!r}"
    elif spec.profile != BALANCED:
        given = f"profile={spec.profile!r}"
    else:
        return
    raise TopologyError(
        f"{where}: {given} tunes RocksDB, and the store is on the engine {MEMORY!r}, which has nothing to tune. Remove "
        f"it, or use engine={ROCKSDB!r}."
    )


def span_fields(
    where: str, *, span: str, entries: str, span_ms: int, grace: Length, retention: Length | None
) -> dict[str, Any]:
    """The fields of a store of windows or sessions. They are kept for a day, or as long as one may be open."""
    grace_ms = millis(grace, "grace", where, shortest=0)
    least = span_ms + grace_ms
    kept = max(DAY_MS, least) if retention is None else millis(retention, "retention", where)
    if kept < least:
        raise TopologyError(
            f"{where}: retention={_shown(retention)} is shorter than {span} of {words(span_ms)} and its grace of "
            f"{words(grace_ms)} together, {words(least)}: {entries} would expire before they are complete. Use "
            f'retention="{words(least)}" or more.'
        )
    return {**kept_for(kept), "options": (("grace_ms", grace_ms),) if grace_ms else ()}


def bound(max_entries: object, where: str) -> int:
    """The limit of entries per partition; 0 means none."""
    if max_entries is None:
        return 0
    if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
        raise TopologyError(f"{where}: max_entries={max_entries!r} is not possible. Use a whole number from 1 on.")
    if max_entries > MOST_ENTRIES:
        raise TopologyError(
            f"{where}: max_entries={max_entries:,} is more than the {MOST_ENTRIES:,} entries whose order of use a "
            "partition can keep. Use fewer entries and more partitions, or limit the store by ttl= alone."
        )
    return max_entries


def _hook(place: object, where: str) -> str | None:
    if place is None or (isinstance(place, str) and _PLACE.fullmatch(place)):
        return place
    raise TopologyError(
        f"{where}: rocksdb_options={place!r} is not the place of a function. Write 'module:function'; instances are "
        "other processes and import it by that name."
    )


def one_of(given: Text, known: Sequence[str], option: str, where: str) -> Text:
    if given not in known:
        raise TopologyError(f"{where}: {option}={given!r}: there are {', '.join(known)}.")
    return given


def words(length_ms: int) -> str:
    """A length of time as a user writes it.

    >>> words(5_400_000)
    '1h30m'
    """
    return format_duration(timedelta(milliseconds=length_ms))


def _shown(length: object) -> str:
    text = format_duration(length) if isinstance(length, timedelta) else length
    return f'"{text}"' if isinstance(text, str) else repr(text)
