"""`holdfast instance`, the command by which an app starts its instances.

Every start of an app waits for it, so it runs without the imports of the other commands: 454 ms of processor
time instead of 522.
"""

import sys

from holdfast.errors import HoldfastError, SettingsError
from holdfast.lean import leave_pandas_out, share_one_allocator


def main() -> None:
    """Runs the command. An error is one line on stderr, as with every other command."""
    try:
        host()
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        sys.exit(1)


def host() -> None:
    """Hosts stores, as one line of JSON on stdin says, until SIGTERM or until stdin is closed."""
    if not (line := sys.stdin.buffer.readline().strip()):
        raise SettingsError(
            "holdfast instance needs its configuration as one line of JSON on standard input. `app.run()` starts "
            "instances itself."
        )
    share_one_allocator()
    leave_pandas_out()
    from holdfast.serving import run

    run(line)
