"""Generations: the assignments of tasks to members, numbered, each an object that is created if absent.

The newest generation is the one in effect. It names its predecessor by a random id, as commits do. An instance hosts
what it names, tasks and queries find replicas by it, and it decides nothing else.

Anyone who can write to the log can write such an object, so one that can't be believed is skipped, with a warning: its
number is used, and the next coordinator takes the number after it. A reader that slept while its next generations were
cleaned finds out by a look at all of them, which it takes now and then.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from holdfast.errors import DamagedObject
from holdfast.group.members import check_tasks
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Put, Storage

logger = logging.getLogger(__name__)

FORMAT = 1
KEPT = 100
"""How many generations are kept."""
LARGEST = 64 << 20
"""The bytes of a generation that are read at most. One with 10,000 tasks and a sentence for each has about 3 MiB."""
_FULL_LOOKS = 30
"""How many looks for the next generation apart all of them are listed."""


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


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that tasks are placed by. They are those of the driver, also while a member coordinates."""

    standbys: int = 0
    spread_by: tuple[str, ...] = ()
    """The tags over which the replicas of a task are spread, most important first."""
    acceptable_lag: int = 10
    """How many versions a replica may be behind the newest one and still counts as caught up."""
    warmups: int = 2
    """How many additional replicas may be restored at a time, so that tasks can move to them."""


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
    rules: Rules = Rules()
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
        self.next_number = 1
        """The number that the next generation gets: the first one that isn't used."""
        self._looks = 0

    def follow(self) -> Generation | None:
        """The newest generation there is."""
        if self._looks % _FULL_LOOKS == 0:
            self._jump(last_in_sequence(self._numbers()))
        while self._take(self.next_number):
            pass
        self._looks += 1
        return self.newest

    def look_again(self) -> Generation | None:
        """Like `follow`, and also finds the newest one if the next ones were cleaned meanwhile."""
        self._looks = 0
        return self.follow()

    def propose(self, generation: Generation) -> bool:
        """Creates the next generation; whether it is this one."""
        before = self.newest
        put = self._storage.create(names.generation(generation.number), documents.encode(generation))
        if put is Put.EXISTS:
            self._take(generation.number)
        elif before is not None and not self._storage.exists(names.generation(before.number)):
            # This process slept, and created a number that was cleaned. Nobody else looks there.
            self.look_again()
        else:
            self.newest, self.next_number = generation, generation.number + 1
        return self.newest is not None and self.newest.id == generation.id

    def clean(self) -> None:
        """Deletes all but the newest ones before the next number."""
        old = [number for number in self._numbers() if number < self.next_number - KEPT]
        self._storage.delete(map(names.generation, old))

    def _numbers(self) -> list[int]:
        listed = self._storage.list_flat(names.GENERATIONS)
        return [number for name in listed if (number := names.number_of(name)) is not None]

    def _jump(self, last: int) -> None:
        """Goes on after the listed ones, if they are ahead. The newest of them that can be believed counts."""
        found = None
        for number in range(last, max(self.next_number - 1, last - KEPT), -1):
            with suppress(ObjectMissing):
                found = self._read(number)
            if found is not None:
                break
        self.newest = found or self.newest
        self.next_number = max(self.next_number, last + 1)  # after all reads: if one fails, the next look starts over

    def _take(self, number: int) -> bool:
        """Whether the number is used; its generation is the newest one, if it can be believed."""
        try:
            found = self._read(number)
        except ObjectMissing:
            return False
        self.newest = found or self.newest
        self.next_number = number + 1
        return True

    def _read(self, number: int) -> Generation | None:
        """A generation that must be there; None, with a warning, for one that can't be believed."""
        name, place = names.generation(number), self._storage.place
        try:
            data = self._storage.get_range(name, 0, LARGEST + 1)
            if len(data) > LARGEST:
                raise documents.damaged(name, place, f"it has more than {LARGEST} bytes")
            found = documents.decode(data, Generation, name=name, place=place, known=FORMAT)
            if (found.log, found.number) != (self._log, number):
                raise documents.damaged(name, place, f"it holds (log, number) {(found.log, found.number)}")
            check_tasks(found.tasks, name, place)
        except (DamagedObject, documents.UnknownFormat) as error:
            logger.warning("a generation is skipped: %s", error)
            return None
        return found


def last_in_sequence(numbers: Iterable[int]) -> int:
    """The last number of the longest sequence without a gap; 0 without any.

    Numbers are created one after the other and deleted from the oldest on. One that stands alone far ahead isn't part
    of the sequence that the others follow: it was not made by a coordinator.

    >>> last_in_sequence([7, 8, 9, 4000]), last_in_sequence([]), last_in_sequence([1, 3, 4])
    (9, 0, 4)
    """
    best, length, before, run = 0, 0, None, 0
    for number in sorted(numbers):
        run = run + 1 if before is not None and number == before + 1 else 1
        if run > length:
            best, length = number, run
        before = number
    return best
