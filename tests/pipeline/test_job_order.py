"""The jobs of a version: in order, side by side where they may, and none after a failure."""

import threading
from collections.abc import Callable

import pytest

from holdfast.pipeline.job_order import Job, planning, run_in_order, running

DEPENDENCIES = {"joined": {"table"}, "table": set[str](), "totals": set[str](), "counts": {"joined", "totals"}}


def same(run: Job) -> Job:
    return run


def ran(run: Callable[[str], bool]) -> list[str]:
    done: list[str] = []

    def noting(name: str) -> bool:
        answer = run(name)
        done.append(name)
        return answer

    run_in_order(DEPENDENCIES, noting, same)
    return done


def test_each_job_runs_after_those_it_depends_on() -> None:
    done = ran(lambda name: True)
    assert sorted(done) == sorted(DEPENDENCIES)
    assert all(done.index(before) < done.index(name) for name, all_ in DEPENDENCIES.items() for before in all_)


def test_jobs_that_need_nothing_of_each_other_run_at_once() -> None:
    both = threading.Barrier(2, timeout=30)
    ran(lambda name: name not in ("table", "totals") or both.wait() >= 0)


def test_after_a_failed_task_no_further_job_runs() -> None:
    assert set(ran(lambda name: name != "table")) <= {"table", "totals"}
    assert "counts" not in ran(lambda name: name != "totals")


def test_jobs_under_way_are_waited_for_when_another_raises() -> None:
    failed, ended = threading.Event(), threading.Event()

    def run(name: str) -> bool:
        if name == "table":
            failed.set()
            raise ConnectionError("the JVM is gone")
        failed.wait(30)
        ended.set()
        return True

    with pytest.raises(ConnectionError):
        run_in_order(DEPENDENCIES, run, same)
    assert ended.is_set()


def test_others_plan_while_a_job_runs() -> None:
    planned = threading.Event()

    def plan() -> None:
        with planning():
            planned.set()

    with planning():
        other = threading.Thread(target=plan)
        other.start()
        with running():
            assert planned.wait(30)
    other.join()
