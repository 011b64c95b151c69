"""Ends while another thread asks an instance for events, and takes two seconds to end after Python was finalized."""

import ctypes
import sys
import threading

from holdfast.instance.client import StateClient


def ask(address: str, connected: threading.Event) -> None:
    with StateClient(address, 10.0) as client:
        connected.set()
        client.events(-1, wait=0.5)


if __name__ == "__main__":
    sys.setswitchinterval(60.0)  # so the main thread goes on when the other one waits for its answer, and not before
    connected = threading.Event()
    threading.Thread(target=ask, args=(sys.argv[1], connected), daemon=True).start()
    connected.wait()
    libc = ctypes.CDLL(None)
    libc.on_exit(libc.sleep, None)  # called with the exit code, so it sleeps for that many seconds
    sys.exit(2)
