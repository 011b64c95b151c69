"""The order of an app's sources in Spark's query. Pure functions.

Spark's checkpoint knows sources by their position alone. So commits record the names in that order; a source that is
added comes after the known ones, wherever the code declares it, and the checkpoint gets an empty position for it. One
that the code no longer has keeps its place and its position, with a stand-in (`former_source.py`).
"""

from collections.abc import Sequence

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit

EMPTY = "-"
"""How Spark's offset log writes that a source has no position yet."""


class SourceRemoved(HoldfastError):
    """The code no longer reads a source whose position is in Spark's checkpoint, and reads one under a new name."""

    category = ErrorCategory.INVALID


def ordered(names: Sequence[str], newest: Commit | None, query: str | None) -> tuple[str, ...]:
    """The sources in the order of the checkpoint of this query: those that it knows, then new ones as declared.

    Those that it knows and the code doesn't have are among them.
    """
    spark = newest.spark if newest else None
    known = spark.sources if spark is not None and spark.query == query else ()
    if len(known) <= 1 and len(names) == 1:
        return tuple(names)  # the only source may get another name
    gone, new = [name for name in known if name not in names], [name for name in names if name not in known]
    if gone and new:
        raise SourceRemoved(
            f"The app no longer reads the source {gone[0]!r}, and has a new one, {new[0]!r}. If that is the same under "
            f"another name, it would be read again from its start: name it {gone[0]!r} as before. If it is another "
            f"one, remove {gone[0]!r} first, and add {new[0]!r} once a start without both has made a version."
        )
    return (*known, *new)


def former(names: Sequence[str], newest: Commit | None, query: str | None) -> dict[str, str]:
    """The sources that the checkpoint knows and the code doesn't have, with their positions in the newest commit."""
    gone = {name: place for place, name in enumerate(ordered(names, newest, query)) if name not in names}
    if newest is None or newest.spark is None:
        return {}
    lines = newest.spark.offsets.splitlines()[2:]
    return {name: lines[place] for name, place in gone.items()}


def with_room(entry: str, sources: int) -> str | None:
    """An entry of Spark's offset log with an empty position per source that it lacks; None if it lacks none.

    >>> with_room('v1\\n{}\\n{"logOffset":3}', 2)
    'v1\\n{}\\n{"logOffset":3}\\n-'
    """
    lines = entry.splitlines()
    missing = sources - (len(lines) - 2)
    return "\n".join([*lines, *[EMPTY] * missing]) if missing > 0 else None
