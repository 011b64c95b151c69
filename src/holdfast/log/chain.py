"""The chain of commits: reading one, and finding the newest. It needs the log's id and no description of the app."""

from collections.abc import Iterator

from holdfast.log import commits, documents, names
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.log.sinks import SinkPositions
from holdfast.words import NOTHING, Version


class CommitChain:
    """The commits of one log."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log
        self.sinks = SinkPositions(storage, log)

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
        requests, however long the history is. One that doesn't follow another is not believed (`follows`).
        """
        damage = None
        for known in self._known_versions(at_least):
            last = self._last_from(known)
            if (commit := self.commit(last)) is None:
                damage = last, "it is missing, although there is a snapshot of its version"
            elif self.follows(commit):
                return commit
            else:
                before = f"commit {commit.previous} of version {last - 1}, which it follows, isn't in the log"
                damage = last, f"it is the newest commit, and {before}"
        if damage is not None:
            raise documents.damaged(names.commit(damage[0]), self._storage.place, damage[1])
        return None

    def follows(self, commit: Commit) -> bool:
        """Whether the log has what a commit follows that was just created or found to be the newest one.

        Cleaning keeps the two newest commits. So a commit without its predecessor was created by a driver that slept:
        under a number that was cleaned meanwhile, or after a version that is another one since the log was set back.
        """
        if commit.version == 1:
            return self._newest_listed() <= 1
        before = self.commit(Version(commit.version - 1))
        return before is not None and before.id == commit.previous

    def snapshot_version(self) -> Version:
        """The newest version any task has a snapshot of. Its commit is never cleaned."""
        manifests = (name for name in self._storage.list(names.SNAPSHOTS) if names.is_manifest(name))
        return max((version for name in manifests if (version := names.version_of(name)) is not None), default=NOTHING)

    def _known_versions(self, at_least: Version) -> Iterator[Version]:
        """Versions to start the search from, the cheapest first. The last ones are safe from a concurrent cleaning."""
        if at_least != NOTHING and self._storage.exists(names.commit(at_least)):
            yield at_least
        if (snapshot := self.snapshot_version()) != NOTHING:
            yield snapshot
        elif at_least != 1 and self._storage.exists(names.commit(Version(1))):
            yield Version(1)
        if (listed := self._newest_listed()) != NOTHING:
            yield listed

    def oldest(self) -> Version:
        """The oldest commit by name. Rarely needed, since all commits are listed."""
        return min(self._listed(), default=NOTHING)

    def kept(self) -> list[Version]:
        """The versions of all commits there are, by name, the oldest first. Rarely needed, like `oldest`."""
        return sorted(self._listed())

    def _newest_listed(self) -> Version:
        """The newest commit by name. Only for logs with few commits, since all of them are listed."""
        return max(self._listed(), default=NOTHING)

    def _listed(self) -> Iterator[Version]:
        found = (names.version_of(name) for name in self._storage.list(names.COMMITS))
        return (version for version in found if version is not None)

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
