"""Generations: the assignments of tasks to members, numbered, each an object that is created if absent.

The newest generation is the one in effect. It names its predecessor by a random id, as commits do. An instance hosts
what it names, tasks and queries find replicas by it, and it decides nothing else.
"""

import msgspec

from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Put, Storage

FORMAT = 1
KEPT = 100
"""How many generations are kept."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the replicas of one task are, by the ids of members."""

    active: str
    standbys: tuple[str, ...] = ()
    warming: tuple[str, ...] = ()
    """Replicas that are restored so that the task can move there."""

    @property
    def members(self) -> tuple[str, ...]:
        """All of them, in the order in which they are asked."""
        return (self.active, *self.standbys, *self.warming)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """How a member is reached."""

    incarnation: int
    flight: str
    rest: str | None = None
    tags: dict[str, str] = {}


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    format: int = msgspec.field(default_factory=lambda: FORMAT)
    log: str
    number: int
    id: str
    """Random: tells one's own put from another one's under the same number."""
    before: str
    """The id of the generation before; empty for the first."""
    proposer: str
    reason: str
    """Why it was made, for people."""
    app_file: int
    """The number of the app file that the tasks are from."""
    members: dict[str, Address]
    tasks: dict[str, Place]
    why: dict[str, str] = {}
    """Per task, why it is where it is."""

    def replicas(self, task: str) -> tuple[str, ...]:
        """The addresses of a task's replicas, the active one first, without members that have no address."""
        place = self.tasks.get(task)
        ids = () if place is None else place.members
        return tuple(self.members[id].flight for id in ids if id in self.members)

    def hosted_by(self, id: str) -> dict[str, Place]:
        return {task: place for task, place in self.tasks.items() if id in place.members}


class Generations:
    """The generations of one log. Each reader has its own, and asks for the next one only."""

    def __init__(self, storage: Storage, log: str) -> None:
        self._storage = storage
        self._log = log
        self.newest: Generation | None = None
        """The newest one that is known here."""

    def follow(self) -> Generation | None:
        """The newest generation there is."""
        if self.newest is None:
            numbers = [number for name in self._listed() if (number := names.number_of(name)) is not None]
            if numbers:
                self.newest = self._read(max(numbers))
        while self.newest is not None and (after := self._read(self.newest.number + 1)) is not None:
            self.newest = after
        return self.newest

    def look_again(self) -> Generation | None:
        """Like `follow`, and also finds the newest one if the next ones were cleaned meanwhile."""
        self.newest = None
        return self.follow()

    def propose(self, generation: Generation) -> bool:
        """Creates the next generation; whether it is this one."""
        name = names.generation(generation.number)
        put = self._storage.create(name, documents.encode(generation))
        found = self._read(generation.number) if put is Put.EXISTS else generation
        if found is not None:
            self.newest = found
        return found is not None and found.id == generation.id

    def clean(self) -> None:
        """Deletes all but the newest ones."""
        listed = self._listed()
        self._storage.delete(listed[:-KEPT])

    def _listed(self) -> list[str]:
        return self._storage.list_flat(names.GENERATIONS)

    def _read(self, number: int) -> Generation | None:
        name = names.generation(number)
        try:
            data = self._storage.get(name)
        except ObjectMissing:
            return None
        found = documents.decode(data, Generation, name=name, place=self._storage.place, known=FORMAT)
        if (found.log, found.number) != (self._log, number):
            raise documents.damaged(name, self._storage.place, f"it holds (log, number) {(found.log, found.number)}")
        return found
