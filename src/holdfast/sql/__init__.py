"""SQL over the stores of an app, by DuckDB in a process of its own.

A statement is run by a worker (`worker`), a child process that holds no state, no credentials and no connection but one
to the instance that started it (`workers`). It asks for the columns and the keys that the statement needs (`scans`),
and the instance streams them at one version. So a statement that uses up its time or memory, or that finds a fault in
DuckDB, costs the worker and nothing else: some of DuckDB's functions can't be interrupted (`levenshtein` of two long
texts ran for 29 s after the interrupt).
"""
