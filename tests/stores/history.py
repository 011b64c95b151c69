"""A reproducible history of changes, in place of a log.

Version v changes a fixed, seeded choice of keys in each family; a value contains the version that wrote it. Run as a
program it brings an engine to the last version, so that a test can kill it on the way:

    python -m tests.stores.history <folder> <versions>
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from holdfast import faults
from holdfast.stores.engines.base import Changes, Engine, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.words import NOTHING, Version
from tests.stores.making import specs

FAMILIES = ("counts", "names", "quiet")
KEYS = 4_000
SMALL_MEMORY = 4 * 1024 * 1024
"""So small that families are flushed independently, in the middle of an apply."""

State = dict[str, dict[bytes, bytes]]


def mark(version: int) -> Mark:
    return Mark(Version(version), f"commit-{version}", "log-1")


def changed(family: str, version: int) -> dict[bytes, bytes | None]:
    """What a version changes: about 2,000 of 4,000 keys, one in ten of them deleted; rarely any in `quiet`."""
    dice = random.Random(f"{family}/{version}")
    count = 2_000 if family != "quiet" else 3 if version % 4 == 2 else 0
    keys = dice.sample(range(KEYS), count)
    padding = dice.randbytes(100)
    return {b"\x01key-%05d" % key: None if dice.random() < 0.1 else b"%06d/" % version + padding for key in keys}


def changes(version: int) -> Iterator[tuple[str, Changes]]:
    for family in FAMILIES:
        if not (entries := changed(family, version)):
            continue
        yield family, Changes(pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary()))


def states(first: int, last: int) -> list[State]:
    """The state at each version from the first to the last."""
    state: State = {family: {} for family in FAMILIES}
    found = []
    for version in range(last + 1):
        for family in FAMILIES if version else ():
            for key, value in changed(family, version).items():
                if value is None:
                    state[family].pop(key, None)
                else:
                    state[family][key] = value
        if version >= first:
            found.append({family: dict(entries) for family, entries in state.items()})
    return found


def state_at(version: int) -> State:
    return states(version, version)[0]


def state_of(engine: Engine) -> State:
    view = engine.view()
    state = {family: dict(view.scan(family, b"", None)) for family in FAMILIES}
    view.close()
    return state


def catch_up(engine: Engine, versions: int) -> None:
    at = engine.mark()
    for version in range((at.version if at else NOTHING) + 1, versions + 1):
        engine.apply(changes(version), mark(version))
        if version % 3 == 0:
            engine.flush()


def main() -> None:
    faults.load_from_environment("instance")
    engine = open_engine("rocksdb", Path(sys.argv[1]), specs(FAMILIES), Resources(SMALL_MEMORY))
    catch_up(engine, int(sys.argv[2]))
    engine.close()


if __name__ == "__main__":
    main()
