"""Options hooks that instances of tests import by name; a module of its own, since those processes have no Spark."""

from holdfast.stores.engines.tuning import Tunable

LEVEL_BYTES = 12_345_678


def smaller(store: str, tunable: Tunable) -> None:
    """Sets something in the store's options and something in those of its database, to be found in RocksDB's file."""
    tunable.options.set_max_bytes_for_level_base(LEVEL_BYTES)
    tunable.database.set_max_background_jobs(3)
