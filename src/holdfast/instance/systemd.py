"""Messages to systemd about this process, where it is started by a unit with `Type=notify`.

systemd names a datagram socket in NOTIFY_SOCKET; each message is one datagram of lines `NAME=value`. Elsewhere nothing
happens. See sd_notify(3).
"""

import contextlib
import os
import socket
import threading
from collections.abc import Mapping

from holdfast.lasting import lasting_thread


def notify(*lines: str, environment: Mapping[str, str] = os.environ) -> None:
    """Sends a message, such as `READY=1`. One that is lost does no harm."""
    place = environment.get("NOTIFY_SOCKET", "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.connect(address)
        sending.send("\n".join(lines).encode())


def answer_watchdog(environment: Mapping[str, str] = os.environ) -> threading.Event:
    """Tells systemd twice per watchdog interval that this process runs, on a thread, until the event is set.

    Not from the heartbeat loop: while storage doesn't answer, or the app has never run, an instance is as it should be.
    """
    ended = threading.Event()
    microseconds = environment.get("WATCHDOG_USEC", "")
    if microseconds.isdecimal() and int(microseconds):

        def ping() -> None:
            while not ended.wait(int(microseconds) / 2e6):
                notify("WATCHDOG=1", environment=environment)

        lasting_thread("watchdog", ping).start()
    return ended
