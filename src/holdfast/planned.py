"""Programs that are imported only to be planned.

`holdfast plan my_module:app` imports a user's program. One that starts its app when it is imported would run it.
"""

import contextlib
import threading
from collections.abc import Iterator

from holdfast.errors import TopologyError

_planning = threading.Event()


@contextlib.contextmanager
def only_planned() -> Iterator[None]:
    """No app starts within it."""
    _planning.set()
    try:
        yield
    finally:
        _planning.clear()


def check_not_planned(app: str) -> None:
    """Raises for an app that is started while its program is only to be planned."""
    if _planning.is_set():
        raise TopologyError(
            f"The program starts app {app!r} when it is imported, and a plan starts nothing. Put app.run(), "
            'app.start() or `with app:` under `if __name__ == "__main__":`.'
        )
