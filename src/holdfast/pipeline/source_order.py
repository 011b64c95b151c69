"""The order of an app's sources in Spark's query. Pure functions.

Spark's checkpoint knows sources by their position alone. So commits record the names in that order; a source that is
added comes after the known ones, wherever the code declares it, and the checkpoint gets an empty position for it.
"""

from collections.abc import Sequence

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit

EMPTY = "-"
"""How Spark's offset log writes that a source has no position yet."""


class SourceRemoved(HoldfastError):
    """The code no longer reads a source whose position is in Spark's checkpoint."""

    category = ErrorCategory.INVALID


def ordered(names: Sequence[str], newest: Commit | None, query: str | None) -> tuple[str, ...]:
    """The sources in the order of the checkpoint of this query: those that it knows, then new ones as declared."""
    spark = newest.spark if newest else None
    known = spark.sources if spark is not None and spark.query == query else ()
    if len(known) <= 1 and len(names) == 1:
        return tuple(names)  # the only source may get another name
    gone = [name for name in known if name not in names]
    if gone:
        raise SourceRemoved(
            f"The app no longer reads the source {gone[0]!r}, and Spark's checkpoint has the positions of "
            f"{', '.join(known)} in this order: without it the others would be read from wrong positions. Keep the "
            f"source and leave its records out, app.stream(df, name={gone[0]!r}, ...).where('false'); or start the "
            'sources over with a new checkpoint and on_new_checkpoint="restart_sources".'
        )
    return (*known, *(name for name in names if name not in known))


def with_room(entry: str, sources: int) -> str | None:
    """An entry of Spark's offset log with an empty position per source that it lacks; None if it lacks none.

    >>> with_room('v1\\n{}\\n{"logOffset":3}', 2)
    'v1\\n{}\\n{"logOffset":3}\\n-'
    """
    lines = entry.splitlines()
    missing = sources - (len(lines) - 2)
    return "\n".join([*lines, *[EMPTY] * missing]) if missing > 0 else None
