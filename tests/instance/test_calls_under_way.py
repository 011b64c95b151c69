"""A program may end at any moment, also while its threads ask instances."""

import os
import subprocess
import sys
from pathlib import Path

from holdfast.instance.calls_under_way import CALLS
from tests.instance.app_log import AppLog, new_url
from tests.instance.test_hosting import running
from tests.instance.test_process import config_of


def test_an_answer_that_arrives_as_a_program_ends_does_no_harm(tmp_path: Path) -> None:
    """One that arrived after Python was finalized ended the process with a segmentation fault."""
    with running(config_of(AppLog(new_url()), tmp_path)) as instance:
        command = [sys.executable, "-m", "tests.instance.ended_beside_a_call", instance.address]
        assert subprocess.run(command, check=False, timeout=60).returncode == 2


def test_a_forked_process_has_no_calls() -> None:
    with CALLS.one():
        child = os.fork()
        if child == 0:
            os._exit(CALLS.number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
