"""Messages to systemd about this process, where it is started by a unit with `Type=notify`.

systemd names a datagram socket in NOTIFY_SOCKET; each message is one datagram of lines `NAME=value`. Elsewhere nothing
happens. See sd_notify(3).
"""

import contextlib
import os
import socket
from collections.abc import Mapping


def notify(*lines: str, environment: Mapping[str, str] = os.environ) -> None:
    """Sends a message, such as `READY=1`. One that is lost does no harm."""
    place = environment.get("NOTIFY_SOCKET", "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.connect(address)
        sending.send("\n".join(lines).encode())
