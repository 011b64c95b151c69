"""What a user may ask of a store, turned into its spec: one place for an aggregate's store and a processor's alike.

    store_spec("sessions", WINDOW, key=..., codec=..., size="5m", grace="30s", retention="6h")

Durations are texts (`"6h"`) or timedeltas. What can't be is refused here, when the app is built, with the numbers in
the message. `where` begins each message: the line of the user's that asked for it.

Layouts follow from the spec and nothing else: entries are in slices where `slice_ms` isn't 0. A store with both a TTL
and `max_entries` isn't sliced: its entries are counted, so those that expire go one by one, through the expiry index.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, Literal, TypeVar

from holdfast.errors import SettingsError, TopologyError, did_you_mean
from holdfast.settings.units import format_duration, parse_duration
from holdfast.stores.engines.profiles import PROFILES
from holdfast.stores.engines.registry import ENGINES
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.recency import MOST_ENTRIES
from holdfast.stores.layouts.slices import slice_ms_for
from holdfast.stores.spec import KEY_VALUE, SESSION, TIMESTAMPED, VERSIONED, WINDOW, StoreSpec

Length = str | timedelta
"""A length of time as a user writes it."""

ROCKSDB: Final = "rocksdb"
MEMORY: Final = "memory"
BALANCED: Final = "balanced"

DAY_MS: Final = 86_400_000

_ENTRIES: Final = (KEY_VALUE, TIMESTAMPED)
Text = TypeVar("Text", bound=str)
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def store_spec(
    name: str,
    kind: str,
    *,
    key: Schema,
    codec: str,
    value: Schema | None = None,
    engine: str | None = None,
    default_engine: str = ROCKSDB,
    ttl: Length | None = None,
    max_entries: int | None = None,
    refresh_on_read: bool = False,
    late: Literal["newest", "last"] = "newest",
    retention: Length | None = None,
    size: Length | None = None,
    gap: Length | None = None,
    grace: Length = "0s",
    duplicates: bool = False,
    durable: bool = True,
    everywhere: bool = False,
    profile: str = BALANCED,
    rocksdb_options: str | None = None,
    where: str = "",
) -> StoreSpec:
    """The spec of a store with these options. `engine` is the user's word; without one the app's default holds.

    >>> key = Schema.of(player="string")
    >>> spec = store_spec("recent", KEY_VALUE, key=key, codec="msgpack/1", ttl="1h")
    >>> spec.ttl_ms, spec.slice_ms
    (3600000, 450000)
    >>> store_spec("w", WINDOW, key=key, codec="msgpack/1", size="1h", retention="30m")
    Traceback (most recent call last):
    ...
    holdfast.errors.TopologyError: store 'w': retention="30m" is shorter than a window's size of 1h and its grace of 0s
    together, 1h: windows would go before they are complete. Take retention="1h" or more.
    """
    where = where or f"store {name!r}"
    if ttl is not None and kind not in _ENTRIES:
        raise TopologyError(
            f"{where}: ttl={_shown(ttl)} is for single entries, and a {kind} store goes by retention. "
            f"Say retention={_shown(ttl)}."
        )
    if max_entries is not None and kind not in _ENTRIES:
        raise TopologyError(
            f"{where}: max_entries={max_entries!r} is for key-value stores. A {kind} store is bounded by retention."
        )
    grace_ms = millis(grace, "grace", where, shortest=0)
    span_ms, retention_ms = _kept(kind, where, size=size, gap=gap, grace_ms=grace_ms, retention=retention)
    ttl_ms = 0 if ttl is None else millis(ttl, "ttl", where)
    bound = _bound(max_entries, where)
    if refresh_on_read and not bound:
        raise TopologyError(f"{where}: refresh_on_read=True says what max_entries evicts. Say max_entries=... too.")
    sliced_by = retention_ms or (0 if bound else ttl_ms)
    spec = StoreSpec(
        name=name,
        kind=kind,
        key=key,
        value=value,
        codec=codec,
        engine=known_engine(engine or default_engine, where),
        ttl_ms=ttl_ms,
        retention_ms=retention_ms,
        slice_ms=slice_ms_for(sliced_by) if sliced_by else 0,
        window_ms=span_ms,
        grace_ms=grace_ms,
        max_entries=bound,
        refresh_on_read=refresh_on_read,
        duplicates=duplicates,
        late=_one_of(late, ("newest", "last"), "late", where),
        durable=durable,
        everywhere=everywhere,
        profile=_one_of(profile, tuple(PROFILES), "profile", where),
        options_hook=_hook(rocksdb_options, where),
    )
    check_tuned(spec, where)
    return spec


OPTIONS: Final = frozenset(store_spec.__kwdefaults__ or ()) - {"value", "default_engine", "where"} | {"codec"}
"""What a user may ask of a store, of one kind or another."""


def check_options(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises for an option that there isn't.

    >>> check_options(["max_entires"], ["ttl", "max_entries"], "store('plays')")
    Traceback (most recent call last):
    ...
    holdfast.errors.TopologyError: store('plays'): there is no option max_entires=. Did you mean 'max_entries'?
    """
    options = sorted(known)
    for option in given:
        if option not in options:
            hint = did_you_mean(option, options) or f"There are {', '.join(options)}."
            raise TopologyError(f"{where}: there is no option {option}=. {hint.strip()}")


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
        raise TopologyError(f"{where}: {option}={_shown(length)} is too short. Take {shortest}ms or more.")
    return found


def known_engine(engine: str, where: str) -> str:
    """An engine of Holdfast's, or the place of a user's own."""
    if engine in ENGINES or _PLACE.fullmatch(engine):
        return engine
    raise TopologyError(
        f"{where}: engine={engine!r}: there are {', '.join(sorted(ENGINES))}. One of your own is named by its place, "
        "'module:Class'."
    )


def check_tuned(spec: StoreSpec, where: str) -> None:
    """Raises for a store in memory that is tuned as only RocksDB can be. An engine of the user's own may be one."""
    if spec.engine != MEMORY:
        return
    if spec.options_hook is not None:
        given = f"rocksdb_options={spec.options_hook!r}"
    elif spec.profile != BALANCED:
        given = f"profile={spec.profile!r}"
    else:
        return
    raise TopologyError(
        f"{where}: {given} tunes RocksDB, and the store is on the engine {MEMORY!r}, which has nothing to tune. Leave "
        f"it out, or say engine={ROCKSDB!r}."
    )


def _kept(
    kind: str, where: str, *, size: Length | None, gap: Length | None, grace_ms: int, retention: Length | None
) -> tuple[int, int]:
    """The span of one entry (a window's size, a session's gap) and how long entries are kept."""
    if kind in _ENTRIES:
        if retention is not None:
            raise TopologyError(
                f"{where}: retention={_shown(retention)} is for windows, sessions and histories, which have a time of "
                f"their own. For entries that go some time after they were written say ttl={_shown(retention)}; to "
                "keep a value for each span of time take a window store."
            )
        return 0, 0
    if kind == VERSIONED and retention is None:
        raise TopologyError(f"{where}: a versioned store needs retention=: how long a key's history is kept.")
    what, given = ("a window's size", size) if kind == WINDOW else ("a session's gap", gap)
    if kind == WINDOW and size is None:
        raise TopologyError(f'{where}: a window store needs size=, such as size="5m".')
    span_ms = 0 if given is None else millis(given, "size" if kind == WINDOW else "gap", where)
    if retention is None:
        return span_ms, max(DAY_MS, span_ms + grace_ms) if kind in (WINDOW, SESSION) else 0
    kept = millis(retention, "retention", where)
    if kind in (WINDOW, SESSION) and kept < span_ms + grace_ms:
        thing = "windows" if kind == WINDOW else "sessions"
        least = words(span_ms + grace_ms)
        raise TopologyError(
            f"{where}: retention={_shown(retention)} is shorter than {what} of {words(span_ms)} and its grace of "
            f"{words(grace_ms)} together, {least}: {thing} would go before they are complete. Take "
            f'retention="{least}" or more.'
        )
    return span_ms, kept


def _bound(max_entries: object, where: str) -> int:
    if max_entries is None:
        return 0
    if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
        raise TopologyError(f"{where}: max_entries={max_entries!r} is not possible. Take a whole number from 1 on.")
    if max_entries > MOST_ENTRIES:
        raise TopologyError(
            f"{where}: max_entries={max_entries:,} is more than the {MOST_ENTRIES:,} entries a partition can put in "
            "the order of their use. Take fewer, and more partitions, or bound the store by ttl= alone."
        )
    return max_entries


def _hook(place: object, where: str) -> str | None:
    if place is None or (isinstance(place, str) and _PLACE.fullmatch(place)):
        return place
    raise TopologyError(
        f"{where}: rocksdb_options={place!r} is no place of a function. Write 'module:function'; instances are other "
        "processes and import it by that name."
    )


def _one_of(given: Text, known: Sequence[str], option: str, where: str) -> Text:
    if given not in known:
        raise TopologyError(f"{where}: {option}={given!r}: there are {', '.join(known)}.")
    return given


def words(length_ms: int) -> str:
    """A length of time as a user writes it.

    >>> words(5_400_000)
    '1h30m'
    """
    return format_duration(timedelta(milliseconds=length_ms))


def _shown(length: Length) -> str:
    return f'"{format_duration(length) if isinstance(length, timedelta) else length}"'
