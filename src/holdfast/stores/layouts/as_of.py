"""Values as of a time, for whole columns of keys and times.

    latest value            ●━━━━━━━━━━━━►     for a time since it started
    history      ●━━━━━━●━━━┘                  for an earlier one: the first entry that ends after that time

`in_history` says which keys need their history, and `valid_at` picks from entries that were read for them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import BEGINNING, Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import Cells
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.areas import SLICE_AREA
from holdfast.stores.layouts.slices import kept_after, split_sliced_keys
from holdfast.stores.layouts.versioned import VALIDITY
from holdfast.stores.spec import StoreSpec

_AFTER: Final = Field("$after", "bigint")
_NUMBER_BYTES: Final = 8


def beginnings(schema: Schema, columns: list[pa.Array]) -> pa.BinaryArray:
    """What keys begin with that have these columns first, and others after them.

    >>> beginnings(Schema.of(player="string"), [pa.array(["ann"])])[0].as_py()
    b'\\x01ann\\x00\\x00'
    """
    zeros = pa.array(np.zeros(len(columns[0]), np.int64))
    keys = encode_keys(Schema((*schema.fields, _AFTER)), [*columns, zeros])
    return pc.binary_slice(keys, 0, -_NUMBER_BYTES)


def history_in(part: pa.Table) -> pa.Table:
    """The entries of histories in a state part."""
    return part.filter(pc.starts_with(part["key"], SLICE_AREA))


def in_history(spec: StoreSpec, now: Now, latest: Cells, deleted: int | None, times: pa.Array) -> pa.BooleanArray:
    """Which keys may have had another value than the latest at these times. `deleted` is the time of the last delete.

    Before the history only the latest value is known.
    """
    ends = pc.fill_null(latest.timestamps, BEGINNING if deleted is None else deleted)
    return pc.and_(pc.less(times, ends), pc.greater_equal(times, kept_after(spec, now)))


def valid_at(key: Schema, asked: pa.BinaryArray, times: pa.Array, entries: pa.Table) -> pa.BinaryArray:
    """The cells that were valid at these times, null where there was none.

    `asked` are the beginnings of keys, `entries` stored entries of a history. Those of other keys are ignored.
    """
    _, own = split_sliced_keys(whole(entries["key"]))
    *columns, ended, started = decode_keys(Schema((*key.fields, *VALIDITY)), own)
    coded = asked.dictionary_encode()
    of_key = pc.index_in(beginnings(key, columns), value_set=coded.dictionary) if len(own) else pa.array([], pa.int32())
    known = pc.is_valid(of_key)
    groups, ends, starts = (_numbers(column.filter(known)) for column in (of_key, ended, started))
    cells = whole(entries["value"]).filter(known)
    wanted, moments = _numbers(coded.indices), _numbers(times)
    # Key and time as one number, so that one search finds all: times by their rank.
    ranks = np.unique(np.concatenate([ends, moments]))
    ordered = groups * len(ranks) + np.searchsorted(ranks, ends)
    order = np.lexsort((starts, ordered))
    found = np.searchsorted(ordered[order], wanted * len(ranks) + np.searchsorted(ranks, moments), side="right")
    inside = found < len(order)
    if not inside.any():
        return pa.nulls(len(asked), pa.binary())
    places = order[np.where(inside, found, 0)]
    valid = inside & (groups[places] == wanted) & (starts[places] <= moments)
    return cells.take(pa.array(places, mask=~valid))


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
