"""Following the log: the commits after a version, one by one, each proven to be its predecessor's successor.

Nothing here waits. Who follows asks again when told, or after a pause of its own.
"""

from collections.abc import Iterator

from holdfast.log.commits import Commit
from holdfast.log.log import BrokenChain, Log
from holdfast.words import NOTHING, Version


class Tail:
    """A place in the log that moves on as commits appear.

    `at` is the version last seen and `commit` its commit's id (None at NOTHING, or where it isn't known).
    """

    def __init__(self, log: Log, at: Version = NOTHING, commit: str | None = None) -> None:
        self.log = log
        self.at = at
        self.commit = commit

    def next_commit(self) -> Commit | None:
        """The next commit, and moves on; None while there is none.

        Raises HistoryCleaned where it was cleaned, and BrokenChain where it follows another commit than the one seen:
        what was built on that one is of another history.
        """
        found = self.log.next_commit(self.at)
        if found is None:
            return None
        if self.commit is not None and found.previous != self.commit:
            raise BrokenChain(
                f"Version {found.version} in {self.log.storage.place} follows commit {found.previous}, and what is "
                f"here was built on {self.commit}. Wipe it and read from the log again."
            )
        self.at, self.commit = Version(found.version), found.id
        return found

    def commits(self, through: Version | None = None) -> Iterator[Commit]:
        """The commits there are now, at most to and with `through`."""
        while (through is None or self.at < through) and (commit := self.next_commit()) is not None:
            yield commit


def next_commit(log: Log, after: Version) -> Commit | None:
    """The commit that follows a version, or None."""
    return log.next_commit(after)
