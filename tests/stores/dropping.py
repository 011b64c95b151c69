"""A history with drops: version v writes slice v of the windows, and drops slice v-2. Also a program to be killed.

    python -m tests.stores.dropping <folder> <step>@<version>

It kills itself at that step: just after a drop, after the flush that follows, or while the range is compacted.
"""

import os
import random
import signal
import sys
from pathlib import Path

import pyarrow as pa

from holdfast.stores.engines.base import Changes, Engine, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.words import NOTHING, Version
from tests.stores.making import specs

FAMILIES = ("windows", "plain")
MEMORY = 8 << 20
ROWS = 3_000
VERSIONS = 9


def mark(version: int) -> Mark:
    return Mark(Version(version), f"commit-{version}", "log-1")


def written(family: str, version: int) -> dict[bytes, bytes]:
    """What a version writes: a slice of its own, or the same plain keys again."""
    dice = random.Random(f"{family}/{version}")
    head = b"\x02%04d" % version if family == "windows" else b"\x01"
    return {head + b"%06d" % n: b"%d/" % version + dice.randbytes(40) for n in range(ROWS if version else 0)}


def everything(family: str, version: int) -> dict[bytes, bytes]:
    """Everything written up to a version, as if nothing had been dropped."""
    found: dict[bytes, bytes] = {}
    for each in range(1, version + 1):
        found |= written(family, each)
    return found


def edge(version: int) -> bytes:
    """The first key of the slices that are left in the windows after the drop of a version."""
    return b"\x02%04d" % (version - 1)


def kept(family: str, version: int) -> dict[bytes, bytes]:
    """What is there at a version, after its drop."""
    return {k: v for k, v in everything(family, version).items() if family == "plain" or k >= edge(version)}


def catch_up(engine: Engine, versions: int, kill: tuple[str, int] = ("", 0)) -> None:
    at = engine.mark()
    for version in range((at.version if at else NOTHING) + 1, versions + 1):
        entries = {family: written(family, version) for family in FAMILIES}
        changes = [(f, Changes(pa.array(list(e)), pa.array(list(e.values())))) for f, e in entries.items()]
        engine.apply(changes, mark(version))
        engine.drop("windows", b"\x02", edge(version))
        if kill == ("dropped", version):
            os.kill(os.getpid(), signal.SIGKILL)
        if version % 2 == 0 or kill[1] == version:
            engine.flush()
        if kill[1] == version:  # the compaction is running or about to start
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    step, _, version = sys.argv[2].partition("@")
    engine = open_engine("rocksdb", Path(sys.argv[1]), specs(FAMILIES), Resources(MEMORY))
    catch_up(engine, VERSIONS, (step, int(version)))


if __name__ == "__main__":
    main()
