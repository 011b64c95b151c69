"""Hooks for RocksDB options that instances import by name; a separate module, since instances have no Spark."""

from holdfast.stores.engines.tuning import Tunable

LEVEL_BYTES = 12_345_678


def smaller(store: str, tunable: Tunable) -> None:
    """Sets one option of the store and one of its database; RocksDB writes both to its options file."""
    tunable.options.set_max_bytes_for_level_base(LEVEL_BYTES)
    tunable.database.set_max_background_jobs(3)
