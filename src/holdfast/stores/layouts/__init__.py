"""Layouts: where the entries of a store are among its bytes, and what is stored beside them.

There is one module per layout:

    plain       entries under their own keys
    sliced      entries with a TTL, in slices by the time of their write
    bounded     at most `max_entries`, those used last (one entry at a time: `bounded_entries`)
    versioned   the latest value under its key, the history in slices
    windowed    windows and sessions, by key and time, in slices

Beside them are the parts that layouts share: the bytes in `areas`, `slices`, `timed`, `expiry` and `recency`, and scans
over slices in `slice_scans`. `base` has what every layout can do, `registry` chooses the layout of a store, and
`rewriter` brings old entries of any layout to the newest schema.
"""
