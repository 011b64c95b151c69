"""Generations: the assignments of tasks to members, numbered, each an object that is created if absent.

The newest generation is the one in effect. It names its predecessor by a random id, as commits do. An instance hosts
what it names, tasks and queries find replicas by it, and it decides nothing else.

Anyone who can write to the log can write such an object, so one that can't be believed is skipped, with a warning: its
number is used, and the next coordinator takes the number after it. Now and then a reader looks at all generations there
are, and what is listed counts: its next ones may have been cleaned while it slept, or an object may be lost.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from holdfast.errors import DamagedObject
from holdfast.group.members import Count, can_be_called, check_tasks
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Put, Storage

logger = logging.getLogger(__name__)

FORMAT = 1
KEPT = 100
"""How many generations are kept."""
LARGEST = 64 << 20
"""The bytes of a generation that are read at most. One with 10,000 tasks and a sentence for each has about 3 MiB."""
LOST = 10
"""As many generations in a row may be lost. A number that is further ahead of all others is not one of them."""
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

    incarnation: Count
    flight: str
    rest: str | None = None
    tags: dict[str, str] = {}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that tasks are placed by. They are those of the driver, also while a member coordinates."""

    standbys: Count = 0
    spread_by: tuple[str, ...] = ()
    """The tags over which the replicas of a task are spread, most important first."""
    acceptable_lag: Count = 10
    """How many versions a replica may be behind the newest one and still counts as caught up."""
    warmups: Count = 2
    """How many additional replicas may be restored at a time, so that tasks can move to them."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    format: int = msgspec.field(default_factory=lambda: FORMAT)
    log: str
    number: Count
    id: str
    """Random: tells one's own put from another one's under the same number."""
    before: str
    """The id of the generation before; empty for the first."""
    proposer: str
    reason: str
    """Why it was made, for people."""
    app_file: Count
    """The number of the app file that the tasks are from."""
    rules: Rules = Rules()
    members: dict[str, Address]
    tasks: dict[str, Place]
    why: dict[str, str] = {}
    """Per task, why it is where it is."""

    def replicas(self, task: str) -> tuple[str, ...]:
        """The addresses of a task's replicas, the active one first, without members that can't be called."""
        place = self.tasks.get(task)
        ids = () if place is None else dict.fromkeys(place.members)
        found = (self.members[id].flight for id in ids if id in self.members)
        return tuple(address for address in found if can_be_called(address))

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
        self._looks_behind = 0
        """How many looks at all of them in a row have found only older ones than the newest known one."""
        self._cleaned: int | None = None
        """The next number at the time of the last cleaning."""
        self._warned: dict[int, str] = {}

    def follow(self) -> Generation | None:
        """The newest generation there is."""
        if self._looks % _FULL_LOOKS == 0:
            self._look_at_all()
        while self._take(self.next_number):
            pass
        self._looks += 1
        return self.newest

    def look_again(self) -> Generation | None:
        """Like `follow`, and looks at all of them: the next ones may have been cleaned or lost."""
        self._looks = 0
        return self.follow()

    def is_stored(self, generation: Generation) -> bool:
        return self._storage.exists(names.generation(generation.number))

    def skip_to(self, number: int) -> None:
        """The next generation gets this number at least: those before it are used, though nobody can read them."""
        self.next_number = max(self.next_number, number)

    def propose(self, generation: Generation) -> bool:
        """Creates the next generation; whether it is this one."""
        before = self.newest
        put = self._storage.create(names.generation(generation.number), documents.encode(generation))
        if put is Put.EXISTS:
            self._take(generation.number)
        elif before is not None and not self.is_stored(before):
            # This process slept, and created a number that was cleaned, where nobody else looks; or `before` is lost.
            self.look_again()
        else:
            self.newest, self.next_number = generation, generation.number + 1
            while self._take(self.next_number):
                pass  # it was a number that had been lost
        return self.newest is not None and self.newest.id == generation.id

    @property
    def is_clean_due(self) -> bool:
        """Whether old ones should be deleted: at the first look, and when there are twice as many as are kept."""
        return self._cleaned is None or self.next_number - self._cleaned > KEPT

    def clean(self) -> None:
        """Deletes all but the newest ones before the next number."""
        old = [number for number in self._numbers() if number < self.next_number - KEPT]
        self._storage.delete(map(names.generation, old))
        self._cleaned = self.next_number

    def _numbers(self) -> list[int]:
        listed = self._storage.list_flat(names.GENERATIONS)
        return [number for name in listed if (number := names.number_of(name)) is not None]

    def _look_at_all(self) -> None:
        """Goes on after the newest one that is stored and can be believed, also if it isn't the one known so far."""
        numbers = sequence(self._numbers())
        found = None
        for number in reversed(numbers[-KEPT:]):
            with suppress(ObjectMissing):
                # Those before the newest one are named only in the log for developers: all of them may be old ones.
                found = self._read(number, logging.WARNING if number == numbers[-1] else logging.DEBUG)
            if found is not None:
                break
        known = 0 if self.newest is None else self.newest.number
        self._looks_behind = self._looks_behind + 1 if found is not None and found.number < known else 0
        # The one known so far is lost. A coordinator sees that members host it, and soon makes a newer one. If nobody
        # does, what is stored counts, as for everyone who reads it from now on.
        if found is not None and (found.number >= known or self._looks_behind > 1):
            self.newest, self.next_number = found, found.number + 1
        elif numbers:
            self.next_number = max(self.next_number, numbers[-1] + 1)

    def _take(self, number: int) -> bool:
        """Whether the number is used; its generation is the newest one, if it can be believed."""
        try:
            found = self._read(number)
        except ObjectMissing:
            return False
        self.newest = found or self.newest
        self.next_number = number + 1
        return True

    def _read(self, number: int, level: int = logging.WARNING) -> Generation | None:
        """A generation that must be there; None, with a warning, for one that can't be believed."""
        name, place = names.generation(number), self._storage.place
        try:
            found = documents.fetch(self._storage, name, Generation, known=FORMAT, largest=LARGEST)
            if (found.log, found.number) != (self._log, number):
                raise documents.damaged(name, place, f"it holds (log, number) {(found.log, found.number)}")
            check_tasks(found.tasks, name, place)
        except (DamagedObject, documents.UnknownFormat) as error:
            if self._warned.get(number) != str(error):
                self._warned[number] = str(error)
                logger.log(level, "a generation is skipped: %s", error)
            return None
        return found


def sequence(numbers: Iterable[int]) -> list[int]:
    """The longest sequence among these numbers, in order. A few that are missing don't end it.

    Numbers are created one after the other and deleted from the oldest on. One that stands alone far ahead isn't part
    of the sequence that the others follow: it was not made by a coordinator.

    >>> sequence([9, 7, 8, 4000]), sequence([]), sequence([1, 3, 4])
    ([7, 8, 9], [], [1, 3, 4])
    """
    best: list[int] = []
    run: list[int] = []
    for number in sorted(numbers):
        run = [*run, number] if run and number - run[-1] <= LOST + 1 else [number]
        if len(run) > len(best):
            best = run
    return best
