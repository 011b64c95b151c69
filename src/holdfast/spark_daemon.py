"""Spark's daemon of Python workers, for the sessions that an app creates. Spark starts it by its name.

Spark ends an idle worker by closing its socket: after a minute, and when Spark itself ends. The worker then tries to
report that nothing more can be read, and over a Unix socket, which our sessions use, that fails at once: a trace of a
BrokenPipeError for every idle worker, unless the daemon's SIGHUP was faster. Here a worker without work just ends.

Workers are forked from this process, so it must not import anything that starts threads.
"""

import os
import socket

from pyspark import daemon

_run = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Waits until there is work or the socket is closed, then works or ends."""
    if authenticated and not sock.recv(1, socket.MSG_PEEK):
        os._exit(0)
    return _run(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
