"""Fingerprints: 64 bits per key, computed for a whole column at once.

They only narrow a search; where fingerprints are equal the keys are compared. Eight bytes of every key are mixed per
round, read straight from the column's buffer, so a column costs a few numpy calls and no Python object per row. A long
column is read in pieces, whose intermediate arrays stay in the processor's cache (measured: 102,400 keys of 9 bytes in
2.2 ms, and 3.5 in one piece).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U64 = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_ODD_NUMBER, _MIX_NUMBER = int(_ODD), int(_MIX)
_HALF = np.uint64(32)
_PIECE = 16_384
_ALL = (1 << 64) - 1
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


def fingerprint(keys: pa.Array) -> U64:
    """One number per key of a binary column without nulls.

    >>> a, b, c = fingerprint(pa.array([b"ab", b"ab", b"ab\\x00"], pa.binary()))
    >>> bool(a == b), bool(a == c)
    (True, False)
    """
    rows = len(keys)
    if rows == 0:
        return np.empty(0, dtype=np.uint64)
    if rows > 2 * _PIECE:
        return np.concatenate([fingerprint(keys.slice(first, _PIECE)) for first in range(0, rows, _PIECE)])
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=rows + 1, offset=4 * keys.offset)
    first, end = int(offsets[0]), int(offsets[-1])
    # Eight more bytes at the end, so that a word can be read at every key's last byte.
    data = np.zeros(end - first + 8, dtype=np.uint8)
    if end > first:
        data[: end - first] = np.frombuffer(data_buffer, dtype=np.uint8, count=end - first, offset=first)
    words = np.ndarray((end - first + 1,), dtype=np.uint64, buffer=data.data, strides=(1,))
    starts = offsets[:-1] - np.int32(first)
    lengths = offsets[1:] - offsets[:-1]
    shortest, longest = int(lengths.min()), int(lengths.max())
    prints = lengths.astype(np.uint64) * _ODD
    for done in range(0, longest, 8):
        if done < shortest:
            # Every key has bytes here, so no rows have to be selected.
            word = words[starts + np.int32(done)]
            if done + 8 > shortest:
                word &= _MASKS[np.minimum(lengths - done, 8)]
            prints = _mixed(prints, word)
        else:
            # A key that has ended stays as it is: its fingerprint must not depend on the lengths of other keys.
            rows_on = np.flatnonzero(lengths > done)
            word = words[starts[rows_on] + np.int32(done)] & _MASKS[np.minimum(lengths[rows_on] - done, 8)]
            prints[rows_on] = _mixed(prints[rows_on], word)
    return _mixed(prints, _ODD)


def fingerprint_of(key: bytes) -> int:
    """The fingerprint of one key: 1 us instead of the 25 of a column of one row.

    >>> fingerprint_of(b"a longer key") == int(fingerprint(pa.array([b"a longer key"], pa.binary()))[0])
    True
    """
    print_ = len(key) * _ODD_NUMBER & _ALL
    for done in range(0, len(key), 8):
        print_ = (print_ ^ int.from_bytes(key[done : done + 8], "little")) * _MIX_NUMBER & _ALL
        print_ ^= print_ >> 32
    print_ = (print_ ^ _ODD_NUMBER) * _MIX_NUMBER & _ALL
    return print_ ^ print_ >> 32


def _mixed(prints: U64, word: U64 | np.uint64) -> U64:
    mixed = prints ^ word
    mixed *= _MIX
    mixed ^= mixed >> _HALF
    return mixed
