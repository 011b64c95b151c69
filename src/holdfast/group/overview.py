"""An overview of a group for people: members, replicas, skew, and what is at risk. Pure: made of what was read.

Whether a member is alive is what the one who looks has seen itself (`Watch`): a heartbeat that changed. Until it should
have changed, the member counts as what it says it is. No timestamp of another machine is compared.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.group.generations import Generation, Place
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.settings.units import shown_size
from holdfast.words import TaskId, Version

_SLOWEST = 60.0
"""The seconds between two heartbeats that anyone waits for: what a member says may be forged."""
HEAVIEST = 3
"""How many tasks and keys are named as the heaviest."""


@dataclass(frozen=True)
class Beat:
    """What was seen of a member's heartbeat, by the clock of the one who looks."""

    alive: bool
    """Whether it has changed since the first look."""
    seconds: float
    """Since it changed, or since the first look."""
    silent: bool
    """Whether it should have changed since."""

    def __str__(self) -> str:
        if self.silent:
            return f"none for {self.seconds:.1f} s"
        return f"{self.seconds:.1f} s ago" if self.alive else "not seen yet"


class Watch:
    """Looks at heartbeats again and again. `interval` is the time between two of a member that doesn't say it.

    >>> watch = Watch(interval=2.0)
    >>> beat = lambda n: {"a": Member(log="l", id="a", incarnation=1, process="p", beat=n, address="grpc://a:1")}
    >>> watch.look(0.0, beat(1)); str(watch.beat("a", 1.0))
    'not seen yet'
    >>> watch.look(2.0, beat(2)); str(watch.beat("a", 2.5)), watch.is_alive(beat(2))
    ('0.5 s ago', True)
    >>> watch.look(6.0, beat(2)); str(watch.beat("a", 6.0))
    'none for 4.0 s'
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._seen: dict[str, tuple[tuple[int, str, int], float, bool]] = {}
        self._pace: dict[str, float] = {}

    def look(self, now: float, members: Mapping[str, Member]) -> None:
        for id, member in members.items():
            identity = member.incarnation, member.process, member.beat
            seen = self._seen.get(id)
            self._pace[id] = min(member.pace or self._interval, _SLOWEST)
            if seen is None:
                self._seen[id] = identity, now, False
            elif seen[0] != identity:
                self._seen[id] = identity, now, True

    @property
    def patience(self) -> float:
        """The seconds after which each heartbeat should have changed."""
        return 1.5 * max(self._pace.values(), default=self._interval)

    def beat(self, id: str, now: float) -> Beat:
        _, since, alive = self._seen[id]
        return Beat(alive, now - since, silent=now - since >= 1.5 * self._pace[id])

    def is_alive(self, members: Mapping[str, Member]) -> bool:
        """Whether all of them were seen to beat, but for those that have left."""
        return all(self._seen[id][2] for id, member in members.items() if member.state is not MemberState.LEFT)


@dataclass(frozen=True)
class MemberRow:
    id: str
    state: str
    beat: Beat
    host: str
    address: str
    rest: str
    """Where it answers queries; empty if it doesn't."""
    tags: str
    generation: int
    active: int
    standby: int
    warming: int
    bytes: int
    load: float | None
    """None until any of its replicas was measured for long enough."""


@dataclass(frozen=True)
class ReplicaRow:
    """A replica that the generation names, as its member's heartbeat describes it."""

    task: str
    role: str
    member: str
    state: str
    version: int | None
    lag: int | None
    bytes: int
    load: float | None
    heavy: tuple[str, ...]


@dataclass(frozen=True)
class Skew:
    """The heaviest member compared with the mean of several. There is none of what nobody has, or has measured."""

    of: str
    member: str
    most: float
    mean: float
    tasks: tuple[str, ...]
    """The heaviest tasks of that member, and their heaviest keys."""

    @property
    def ratio(self) -> float:
        return self.most / self.mean if self.mean else 1.0


@dataclass(frozen=True)
class Overview:
    newest: Version
    generation: Generation | None
    members: Sequence[MemberRow]
    replicas: Sequence[ReplicaRow]
    skews: Sequence[Skew]
    warnings: Sequence[str]
    paused: str | None = None
    """Who has paused the app."""


def without_ages(found: Overview) -> Overview:
    """The overview without what changes at every look: how long ago heartbeats came."""
    return replace(found, members=[replace(row, beat=replace(row.beat, seconds=0.0)) for row in found.members])


def overview(
    members: Mapping[str, Member],
    beats: Mapping[str, Beat],
    generation: Generation | None,
    newest: Version,
    *,
    large: int,
    restore_rate: int,
    draining: Container[str] = (),
) -> Overview:
    """`large` is the size of a state that should have a standby; `restore_rate` is in bytes per second."""
    places = {} if generation is None else generation.tasks
    silent = {id for id, member in members.items() if member.state is not MemberState.LEFT and beats[id].silent}
    ordered = sorted(places, key=_in_order)
    replicas = [row for task in ordered for row in _replicas(task, places[task], members, silent, newest)]
    rows = [_member(members[id], beats[id], replicas, draining=id in draining) for id in sorted(members)]
    hosting = [row for row in rows if row.active + row.standby + row.warming]
    skews = [_skew("size", hosting, replicas), _skew("load", hosting, replicas)] if len(hosting) > 1 else []
    wanted = 0 if generation is None else generation.rules.standbys
    here = {id for id, member in members.items() if member.state is MemberState.JOINED} - silent
    warning = _without_standby(replicas, wanted, large, restore_rate, _remedy(wanted, len(here), sorted(silent)))
    return Overview(
        newest, generation, rows, replicas, [skew for skew in skews if skew.most], [] if warning is None else [warning]
    )


def _in_order(task: str) -> TaskId:
    return TaskId.parse(task)


def _replicas(
    task: str, place: Place, members: Mapping[str, Member], silent: Container[str], newest: Version
) -> Iterable[ReplicaRow]:
    roles = (("active", (place.active,)), ("standby", place.standbys), ("warming", place.warming))
    for role, ids in roles:
        for id in ids:
            hosted = members[id].tasks.get(task) if id in members else None
            row = _replica(task, role, id, hosted, newest)
            # What it said last is the most that is known: it may have ended, and its disk may be lost.
            yield replace(row, state="silent") if id in silent else row


def _replica(task: str, role: str, id: str, hosted: Hosted | None, newest: Version) -> ReplicaRow:
    if hosted is None:
        return ReplicaRow(task, role, id, "not there yet", None, None, 0, None, ())
    state = "running" if hosted.running else "restoring"
    lag = max(0, newest - hosted.version)
    return ReplicaRow(task, role, id, state, hosted.version, lag, hosted.bytes, hosted.load, hosted.heavy)


def _member(member: Member, beat: Beat, replicas: Sequence[ReplicaRow], *, draining: bool) -> MemberRow:
    own = [row for row in replicas if row.member == member.id]
    measured = [row.load for row in own if row.load is not None]
    state = str(member.state)
    if member.state is MemberState.JOINED and (draining or beat.silent):
        state = "silent" if beat.silent else "draining"
    return MemberRow(
        id=member.id,
        state=state,
        beat=beat,
        host=member.host,
        address=member.address,
        rest=member.rest or "",
        tags=",".join(f"{tag}={value}" for tag, value in sorted(member.tags.items())),
        generation=member.generation,
        active=sum(row.role == "active" for row in own),
        standby=sum(row.role == "standby" for row in own),
        warming=sum(row.role == "warming" for row in own),
        bytes=sum(row.bytes for row in own),
        load=None if own and not measured else sum(measured),
    )


def _skew(of: str, members: Sequence[MemberRow], replicas: Sequence[ReplicaRow]) -> Skew:
    def measured(row: MemberRow | ReplicaRow) -> float:
        return row.bytes if of == "size" else row.load or 0.0

    heaviest = max(members, key=lambda row: (measured(row), row.id))
    own = sorted((row for row in replicas if row.member == heaviest.id), key=lambda row: (-measured(row), row.task))
    named = tuple(_named(row) for row in own[:HEAVIEST] if measured(row))
    return Skew(of, heaviest.id, measured(heaviest), sum(map(measured, members)) / len(members), named)


def _named(row: ReplicaRow) -> str:
    keys = f", heaviest keys {', '.join(row.heavy[:HEAVIEST])}" if row.heavy else ""
    load = "" if row.load is None else f", {row.load:,.0f} reads/s"
    return f"{row.task} ({shown_size(row.bytes)}{load}{keys})"


def _remedy(wanted: int, here: int, silent: Sequence[str]) -> str:
    """What to do where tasks have no standby."""
    if not wanted:
        return "Set standbys = 1 or more."
    if here <= wanted:
        return f"Start more instances: standbys = {wanted} needs {wanted + 1}."
    if silent:
        return f"{', '.join(silent)} may be back; if not, other instances restore them after group.session_timeout."
    return "Other instances restore them: look again in a moment."


def _without_standby(
    replicas: Sequence[ReplicaRow], wanted: int, large: int, restore_rate: int, remedy: str
) -> str | None:
    """The member whose loss would take longest to restore, if that is much, or if there should be standbys."""
    standing_by = {row.task for row in replicas if row.role == "standby" and row.state != "silent"}
    lonely: dict[str, list[ReplicaRow]] = {}
    for row in replicas:
        if row.role == "active" and row.task not in standing_by:
            lonely.setdefault(row.member, []).append(row)
    sizes = {id: sum(row.bytes for row in rows) for id, rows in lonely.items()}
    worst = max(sizes, key=lambda id: (sizes[id], id), default=None)
    if worst is None or (sizes[worst] < large and not wanted):
        return None
    return (
        f"tasks on {worst} without a standby: {len(lonely[worst])}, {shown_size(sizes[worst])} together. If {worst} is "
        f"lost with its disk, they can't be read for {_about(sizes[worst] / restore_rate)}, at "
        f"{shown_size(restore_rate)}/s of restore. {remedy}"
    )


def _about(seconds: float) -> str:
    return f"about {duration(seconds)}" if round(seconds) else "less than a second"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(21.4), duration(150), duration(7260)
    ('21 s', '2 m 30 s', '2 h 1 m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} m"
