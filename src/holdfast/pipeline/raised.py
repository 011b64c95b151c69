"""How an error of a user's code is shown: the exception, and the user's own line."""

import traceback
from pathlib import Path
from typing import Final

from holdfast.errors import cut

_OWN_CODE = str(Path(__file__).parents[1])
_LONGEST: Final = 1_000
"""The maximum length of a user's exception in a message: it may contain a whole record."""


def raised(error: BaseException) -> str:
    """The exception with the place in the user's own code.

    >>> raised(ValueError("7 points"))
    'ValueError: 7 points'
    """
    text = cut(traceback.format_exception_only(error)[-1].strip(), _LONGEST)
    return f"{text.removesuffix('.')}{_place(error)}"


def _place(error: BaseException) -> str:
    """The innermost line that isn't Holdfast's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OWN_CODE)]
    if not frames:
        return ""
    last = frames[-1]
    line = f": {last.line}" if last.line else ""  # a cell of a notebook has no file
    return f" (at {last.filename}:{last.lineno}, in {last.name}{line})"
