"""The files that this process may open, divided among its databases.

A RocksDB has 6 files of its own, 2 folders, and those of its stores: up to two views pin each file that isn't merged
yet, and RocksDB keeps more of them open to read them again. So with many tasks of many stores the limit of the system
(`ulimit -n`) decides how many files a store may have before they are merged. Measured with 20 stores, each with a
view: 4 files before a merge keep 80 to 100 open per database, 2 keep 40 to 50.

Above its limit a process can't open a file, a folder or a connection. That is never damage: nothing was read wrongly.
"""

import errno
import os
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.stores.spec import StoreSpec

OWN_FILES: Final = 8
"""Files of a database whatever its stores have: the manifest, logs, the lock, and its folder twice."""
SPARE_FILES: Final = 10
"""Files of a merge under way."""
FEWEST_MERGED: Final = 2
"""A store with fewer files before a merge would be merged after every flush."""
_USUAL_SHARDS: Final = 6
MOST_PER_DATABASE: Final = 1_000
_OTHERS: Final = 256
"""Files and connections that aren't of databases, at least; of a large limit a tenth."""
_NO_LIMIT: Final = 1 << 30
_LISTED: Final = 1 << 17
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)

HOW_TO_RAISE: Final = (
    "Raise the limit before the process starts: `ulimit -n 65536` in its shell, LimitNOFILE=65536 in its systemd unit, "
    "`ulimits: nofile` in its compose file. Or run more instances, or an app with fewer partitions"
)


def file_limit() -> int:
    """How many files this process may open."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _finite(limit: int) -> int:
    return _NO_LIMIT if limit == resource.RLIM_INFINITY else limit


def others(limit: int) -> int:
    """How many of them are kept for connections, objects of the log and everything else that isn't a database.

    >>> others(1_024), others(20_000)
    (256, 2000)
    """
    return max(min(_OTHERS, limit // 2), limit // 10)


def files_of_database(stores: int, per_store: int = FEWEST_MERGED) -> int:
    """How many files a database needs, with so many per store before they are merged.

    >>> files_of_database(20)
    60
    """
    return OWN_FILES + SPARE_FILES + per_store * (stores + 1)


def databases_of(specs: Iterable[StoreSpec]) -> list[int]:
    """The RocksDBs of one task, each as its number of stores."""
    return list(Counter((each.durable, each.after) for each in specs if each.engine == "rocksdb").values())


def files_needed(databases: Iterable[int]) -> int:
    """The limit that a process needs for databases with so many stores each.

    >>> files_needed([20] * 256), files_needed([1] * 4)
    (17067, 344)
    """
    used = sum(map(files_of_database, databases))
    return max(used + _OTHERS, -(-used * 10 // 9))


def warning_about(databases: Sequence[int]) -> str | None:
    """What to do if the limit is too low for these databases; None where it isn't."""
    if (needed := files_needed(databases)) <= (limit := file_limit()):
        return None
    return (
        f"this process may open {limit:,} files, and all tasks of the app need about {needed:,}: they have "
        f"{len(databases):,} databases of up to {max(databases)} stores. {HOW_TO_RAISE}."
    )


@dataclass(frozen=True)
class FileShare:
    """How many files one database may have open."""

    files: int = MOST_PER_DATABASE

    @classmethod
    def of(cls, limit: int, databases: int) -> "FileShare":
        """An equal share.

        >>> FileShare.of(20_000, 256), FileShare.of(65_536, 12)
        (FileShare(files=70), FileShare(files=1000))
        """
        return cls(min(MOST_PER_DATABASE, max(0, limit - others(limit)) // max(1, databases)))

    @property
    def is_scarce(self) -> bool:
        return self.files < MOST_PER_DATABASE

    @property
    def cached(self) -> int:
        """How many files RocksDB keeps open, those included that are being read. It needs 20."""
        return max(20, self.files - OWN_FILES)

    @property
    def cache_shards(self) -> int:
        """How often RocksDB divides these in two. Each part keeps one file at least: with its 64 parts that is 64.

        >>> FileShare(1_000).cache_shards, FileShare(70).cache_shards
        (6, 1)
        """
        return max(0, (self.cached // 16).bit_length() - 1) if self.is_scarce else _USUAL_SHARDS

    def before_merge(self, wanted: int, stores: int) -> int:
        """How many files a store has before they are merged, at most as many as wanted.

        >>> FileShare(70).before_merge(4, 20), FileShare(1_000).before_merge(4, 20)
        (2, 4)
        """
        return min(wanted, max(FEWEST_MERGED, (self.files - OWN_FILES - SPARE_FILES) // (stores + 1)))

    def before_stop(self, wanted: int, before_merge: int, before_merge_wanted: int) -> int:
        """How many it has before writes wait for a merge, in the same proportion.

        >>> FileShare(70).before_stop(36, 2, 4), FileShare().before_stop(36, 4, 4)
        (4, 36)
        """
        return wanted if before_merge == before_merge_wanted else min(wanted, 2 * before_merge)


def is_too_many(error: BaseException) -> bool:
    """Whether the system has refused to open one more file. RocksDB's errors have its text alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _TOO_MANY
    return any(os.strerror(number) in str(error) for number in _TOO_MANY)


def open_files() -> str:
    """What this process has open, in words. It opens nothing itself."""
    limit, most = map(_finite, resource.getrlimit(resource.RLIMIT_NOFILE))
    kinds: Counter[str] = Counter()
    for number in range(min(limit, _LISTED)):
        try:
            kinds[_kind(os.readlink(f"/proc/self/fd/{number}"))] += 1
        except OSError:
            continue
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    shown = f"{kinds.total():,} are open ({listed})" if kinds else "how many are open isn't known on this system"
    higher = "" if most == limit else f" (its hard limit is {most:,})"
    return f"This process may open {limit:,} files{higher}, and {shown}."


def _kind(target: str) -> str:
    if target.startswith("socket:"):
        return "connections"
    if target.endswith(".sst"):
        return "files of stores"
    return "others" if target.startswith(("pipe:", "anon_inode:", "/dev/")) else "other files and folders"
