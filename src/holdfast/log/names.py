"""The name of every object in the log. No other module builds or parses names.

Numbers are padded to 20 digits, so that names sort by number.
"""

from holdfast.words import BadTaskName, TaskId, Version

LOG = "log.json"
APPS = "app/"
COMMITS = "commits/"
SEGMENTS = "segments/"
VOLATILE = "volatile/"
SNAPSHOTS = "snapshots/"
SINKS = "sinks/"
LEADERS = "leader/"
MEMBERS = "group/members/"
GENERATIONS = "group/generations/"
DRIVER_HEARTBEAT = "group/driver.json"
PAUSE = "pause.json"

_DIGITS = 20
_DRAIN = ".drain"


def padded(number: int) -> str:
    """A number as it is written in a name.

    >>> padded(7)
    '00000000000000000007'
    """
    return f"{number:0{_DIGITS}d}"


def app(number: int) -> str:
    return f"{APPS}{padded(number)}.json"


def commit(version: Version) -> str:
    """
    >>> commit(Version(12))
    'commits/00000000000000000012.json'
    """
    return f"{COMMITS}{padded(version)}.json"


def segments(task: TaskId | None) -> str:
    """The folder of a task's segments, or of the objects that have segments of several tasks."""
    return f"{SEGMENTS}{task or 'all'}/"


def segment(task: TaskId | None, version: Version, unique: str) -> str:
    """A new name per attempt of a task; every attempt has its own `unique`. Without a task: for segments of several.

    >>> segment(TaskId(0, 3), Version(12), "a1")
    'segments/0_3/00000000000000000012-a1.arrow'
    >>> segment(None, Version(12), "a1")
    'segments/all/00000000000000000012-a1.arrow'
    """
    return f"{segments(task)}{padded(version)}-{unique}.arrow"


def volatile_segments(task: TaskId | None) -> str:
    return f"{VOLATILE}{task or 'all'}/"


def volatile_segment(task: TaskId | None, version: Version, unique: str) -> str:
    """A new name for a segment of stores that aren't durable. They have a folder of their own, since they expire early.

    >>> volatile_segment(TaskId(0, 3), Version(12), "a1")
    'volatile/0_3/00000000000000000012-a1.arrow'
    """
    return f"{volatile_segments(task)}{padded(version)}-{unique}.arrow"


def snapshots(task: TaskId) -> str:
    return f"{SNAPSHOTS}{task}/"


def manifest(task: TaskId, version: Version) -> str:
    return f"{snapshots(task)}{padded(version)}.json"


def is_manifest(name: str) -> bool:
    """Whether a name under `snapshots/` is a manifest. A file's hash may begin like a version.

    >>> is_manifest(manifest(TaskId(0, 3), Version(12))), is_manifest(snapshot_file(TaskId(0, 3), "01" * 16))
    (True, False)
    """
    return name.count("/") == 2


def task_of(name: str) -> TaskId | None:
    """The task that an object under `snapshots/`, `segments/` or `volatile/` belongs to; None if it isn't the log's.

    >>> task_of("snapshots/0_3/files/0b1c"), task_of("snapshots/.DS_Store")
    (TaskId(subtopology=0, partition=3), None)
    """
    try:
        return TaskId.parse(name.split("/")[1])
    except BadTaskName:
        return None


def snapshot_files(task: TaskId) -> str:
    return f"{snapshots(task)}files/"


def snapshot_file(task: TaskId, digest: str) -> str:
    return f"{snapshot_files(task)}{digest}"


def sink_positions(version: Version) -> str:
    """The positions of all sinks, written at a clean stop at this version."""
    return f"{SINKS}{padded(version)}.json"


def leader(epoch: int) -> str:
    """
    >>> leader(3)
    'leader/00000000000000000003.json'
    """
    return f"{LEADERS}{padded(epoch)}.json"


def member(id: str) -> str:
    """The heartbeat of the instance with this id.

    >>> member("game-0")
    'group/members/game-0.json'
    """
    return f"{MEMBERS}{id}.json"


def member_of(name: str) -> str | None:
    """The id of the instance in the name of a heartbeat; None if it isn't one.

    >>> member_of(member("game-0")), member_of("group/members/.DS_Store")
    ('game-0', None)
    """
    folder, suffix = name.removeprefix(MEMBERS), ".json"
    return folder.removesuffix(suffix) if name.startswith(MEMBERS) and folder.endswith(suffix) else None


def drain(id: str) -> str:
    """Says that the instance with this id is to be drained. It lies next to the heartbeats, which are listed anyway.

    >>> drain("game-0")
    'group/members/game-0.drain'
    """
    return f"{MEMBERS}{id}{_DRAIN}"


def drained(name: str) -> str | None:
    """The id of the instance in the name of a drain; None if it isn't one.

    >>> drained(drain("game-0")), drained(member("game-0"))
    ('game-0', None)
    """
    is_drain = name.startswith(MEMBERS) and name.endswith(_DRAIN)
    return name.removeprefix(MEMBERS).removesuffix(_DRAIN) if is_drain else None


def generation(number: int) -> str:
    """
    >>> generation(3)
    'group/generations/00000000000000000003.json'
    """
    return f"{GENERATIONS}{padded(number)}.json"


def is_of_group(name: str) -> bool:
    """Whether this is an object that the processes of a group write for each other; an operator's request isn't one.

    >>> is_of_group(member("game-0")), is_of_group(generation(3)), is_of_group(drain("game-0")), is_of_group(LOG)
    (True, True, False, False)
    """
    return name == DRIVER_HEARTBEAT or name.startswith(GENERATIONS) or member_of(name) is not None


def number_of(name: str) -> int | None:
    """The number in a name: a version, an epoch, or the number of an app's file. None for a name without one.

    >>> number_of("commits/00000000000000000012.json"), number_of("segments/0_3/00000000000000000012-ab.arrow")
    (12, 12)
    >>> number_of("snapshots/0_3/files/0b1c") is None
    True
    """
    digits = name.rsplit("/", 1)[-1][:_DIGITS]
    return int(digits) if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() else None


def version_of(name: str) -> Version | None:
    """The version in a name, or None."""
    number = number_of(name)
    return None if number is None else Version(number)
