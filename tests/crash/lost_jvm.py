"""Spark's JVM is killed while an app runs. The app's Python process continues.

    python -m tests.crash.lost_jvm <folder>

Prints the state that the app reaches, and its cause.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import holdfast as hf
from tests.crash.scenario import build


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    app = build(folder)
    jvm = int(app.spark.sparkContext._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
    failed = threading.Event()
    app.on_state(lambda old, new: failed.set() if new is hf.AppState.ERROR else None)
    app.start()
    os.kill(jvm, signal.SIGKILL)
    assert failed.wait(120), f"the app is still {app.state}"
    print(json.dumps({"state": str(app.state), "cause": str(app.cause)}), flush=True)
    app.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
