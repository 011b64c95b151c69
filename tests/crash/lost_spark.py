"""Spark goes away while an app runs: by `spark.stop()` in a batch and between batches, then by a kill of the JVM.

The app's Python process continues.

    python -m tests.crash.lost_spark <folder>

Prints, per loss, the state that the app reached, its cause, and the seconds that this and `app.stop()` took.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.crash.scenario import build


def lose(folder: Path, go_away: Callable[[hf.App], object]) -> dict[str, Any]:
    app = build(folder)
    failed = threading.Event()
    app.on_state(lambda old, new: failed.set() if new is hf.AppState.ERROR else None)
    app.start()
    go_away(app)
    begun = time.monotonic()
    assert failed.wait(120), f"the app is still {app.state}"
    ended = time.monotonic()
    app.stop()
    stopped = time.monotonic()
    return {"state": str(app.state), "cause": str(app.cause), "seconds": ended - begun, "stopping": stopped - ended}


def stop_when_idle(app: hf.App) -> None:
    app.process_all_available()
    app.spark.stop()


def kill_jvm(app: hf.App) -> None:
    os.kill(int(app.spark.sparkContext._jvm.ProcessHandle.current().pid()), signal.SIGKILL)  # type: ignore[union-attr]


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    found = [lose(folder, go_away) for go_away in (lambda app: app.spark.stop(), stop_when_idle, kill_jvm)]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
