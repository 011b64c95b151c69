"""Gets SIGTERM at the worst moment: its main thread begins to wait for the request to stop, and has its lock."""

import os
import signal
import sys
import threading
from types import FrameType

from holdfast.instance.process import call_on_signals


def at_the_worst_moment(frame: FrameType, event: str, _: object) -> None:
    if frame.f_code is threading.Condition.wait.__code__:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    asked = threading.Event()
    call_on_signals(asked.set)
    sys.settrace(at_the_worst_moment)
    asked.wait()
    print("asked to stop")
