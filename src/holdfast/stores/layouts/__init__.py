"""Layouts: where the entries of a store stand among its bytes, and what stands beside them. One module per layout.

    plain       entries under their own keys
    sliced      entries with a TTL, in slices by when they were written
    bounded     at most `max_entries`, those used last (one entry at a time: `bounded_entries`)
    versioned   the latest value under its key, the history in slices
    windowed    windows and sessions, by key and time, in slices

`base` says what a layout can be asked, `registry` which one a store has, and `rewriter` brings old entries of any of
them to the newest schema. `slices`, `timed`, `expiry` and `recency` have the bytes that several of them share.
"""
