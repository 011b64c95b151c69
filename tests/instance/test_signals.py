"""An instance hears a signal whatever its main thread does at that moment."""

import subprocess
import sys


def test_a_signal_while_the_wait_for_it_begins_is_heard() -> None:
    command = [sys.executable, "-m", "tests.instance.signalled"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=20)
    assert done.stdout == "asked to stop\n"
