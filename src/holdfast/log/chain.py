"""The chain of commits: reading one, and finding the newest. It needs the log's id and no description of the app."""

from holdfast.log import commits, documents, names
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.words import NOTHING, Version

_SEARCHES = 5
"""How often a search for the newest commit starts over because of a concurrent cleaning; they are a minute apart."""


class CommitChain:
    """The commits of one log."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version; None if it doesn't exist or was cleaned."""
        try:
            data = self._storage.get(names.commit(version))
        except ObjectMissing:
            return None
        return commits.decode(data, version, self._log, place=self._storage.place)

    def newest(self, at_least: Version = NOTHING) -> Commit | None:
        """The newest commit. `at_least` is a version known to have existed, where the search starts.

        There are no gaps after the oldest commit, so an exponential and then a binary search find the end with few
        requests, however long the history is. Cleaning deletes the oldest commits first: if a commit still exists
        after the search, its missing successor was not cleaned but never existed.
        """
        for _ in range(_SEARCHES):
            known = self._known_version(at_least)
            if known == NOTHING:
                return None
            last = self._last_from(known)
            if (commit := self.commit(last)) is not None:
                return commit
        raise documents.damaged(
            names.commit(last), self._storage.place, "it is missing, although there is a snapshot of its version"
        )

    def snapshot_version(self) -> Version:
        """The newest version any task has a snapshot of. Its commit is never cleaned."""
        manifests = (name for name in self._storage.list(names.SNAPSHOTS) if names.is_manifest(name))
        return max((version for name in manifests if (version := names.version_of(name)) is not None), default=NOTHING)

    def _known_version(self, at_least: Version) -> Version:
        """A version that has a commit now, or NOTHING."""
        if at_least != NOTHING and self._storage.exists(names.commit(at_least)):
            return at_least
        if (snapshot := self.snapshot_version()) != NOTHING:
            return snapshot
        return Version(1) if self._storage.exists(names.commit(Version(1))) else NOTHING

    def _last_from(self, known: Version) -> Version:
        step = 1
        low, high = known, Version(known + step)
        while self._storage.exists(names.commit(high)):
            step *= 2
            low, high = high, Version(high + step)
        while high - low > 1:
            middle = Version((low + high) // 2)
            if self._storage.exists(names.commit(middle)):
                low = middle
            else:
                high = middle
        return low
