"""Stores that come and go: what a start keeps, what it deletes, and what it asks the user."""

import logging
import uuid
from datetime import timedelta

import msgspec
import pytest

from holdfast.log import names
from holdfast.log.appfile import AppChanged, AppSpec
from holdfast.log.changing import ChangeRules
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.starting import StartPlan, plan_start
from holdfast.log.storage import open_storage
from holdfast.stores.spec import Removed
from tests.log.making import Watched, app_spec, commits_after, grow, store_spec, subtopologies_of
from tests.log.test_appfile import declared, numbers

KEPT = timedelta(seconds=60)
A, B = store_spec("a"), store_spec("b")
BOTH, ONE = app_spec(A, B), app_spec(A)


def start(storage: Storage, app: AppSpec, **returned: str) -> Log:
    return Log.create_or_open(storage, app, rules=ChangeRules(keep_removed=KEPT, returned=returned))


def run(storage: Storage, app: AppSpec, versions: int = 1, **returned: str) -> Log:
    """Starts the app and commits versions, a second apart by the wall clock."""
    log = start(storage, app, **returned)
    grow(log, versions, wall=lambda version: version * 1_000)
    return log


def plan(storage: Storage, app: AppSpec, **returned: str) -> StartPlan:
    before = storage.list("")
    found = plan_start(storage, app, ChangeRules(keep_removed=KEPT, returned=returned))
    assert storage.list("") == before, "a plan changes nothing"
    return found


def test_a_plan_is_shown_as_its_text(storage: Storage) -> None:
    """Also by a notebook, which shows the repr of a cell's last line."""
    run(storage, BOTH, 3)
    found = plan(storage, ONE)
    assert repr(found) == str(found)
    assert repr(found).startswith(f"The log of {ONE.id} at {storage.place} is at version 3.\n")


def test_a_store_that_the_code_no_longer_has_is_kept(storage: Storage) -> None:
    run(storage, BOTH, 3)
    gone = run(storage, ONE, 4).app
    kept = gone.store("b")
    assert kept is not None
    assert kept.removed == Removed(until=3, wall=3_000)
    assert gone.current_stores == (A,)
    assert {store.name for store in gone.stores_of(gone.tasks()[0])} == {"a", "b"}, "replicas keep it"
    assert run(storage, ONE).app == gone, "and a later start finds it as it was"


def test_a_refused_store_that_is_back_is_not_told_to_undo_a_change(storage: Storage) -> None:
    run(storage, BOTH, 3)
    run(storage, ONE, 4)
    with pytest.raises(AppChanged, match=r"Set returned_stores=.*\nDo what each line says, or go back to") as refused:
        start(storage, BOTH)
    assert "Undo" not in str(refused.value)


def test_a_start_without_the_store_that_fails_removes_nothing(storage: Storage) -> None:
    first = run(storage, BOTH, 3)
    start(storage, ONE)
    assert run(storage, BOTH).app == first.app


def test_a_store_that_comes_back_needs_a_choice(storage: Storage) -> None:
    run(storage, BOTH, 3)
    run(storage, ONE, 4)
    with pytest.raises(AppChanged, match="'b' was removed after version 3 and has missed versions 4 to 7") as raised:
        start(storage, BOTH)
    assert "returned_stores={'b': 'continue'}" in str(raised.value)
    assert "returned_stores={'b': 'start_over'}" in str(raised.value)
    assert run(storage, ONE).app.current_stores == (A,), "the start that was refused changed nothing"

    found = plan(storage, BOTH, b="continue")
    assert found.changes == ("store 'b' is back and goes on as of version 3, without the changes of versions 4 to 8",)
    back = run(storage, BOTH, b="continue").app
    assert {store.name: (store.after, store.removed) for store in back.stores} == {"a": (0, None), "b": (0, None)}
    assert run(storage, BOTH).app == back, "no choice is needed any more"


def test_a_store_that_comes_back_can_start_over(storage: Storage) -> None:
    run(storage, BOTH, 3)
    run(storage, ONE, 4)
    other = store_spec("b", key="bigint")
    with pytest.raises(AppChanged, match="key"):
        start(storage, app_spec(A, other), b="continue")
    found = plan(storage, app_spec(A, other), b="start_over")
    assert found.changes == (
        "store 'b' is back and starts over, empty, after version 7; the entries it had at version 3 are deleted",
    )
    back = run(storage, app_spec(A, other), b="start_over").app.store("b")
    assert back is not None
    assert (back.after, back.removed, back.key) == (7, None, other.key)


def test_a_choice_that_stays_in_the_settings_is_a_warning(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    run(storage, BOTH, 3)
    with caplog.at_level(logging.WARNING):
        start(storage, BOTH, b="continue")
    assert "returned_stores has 'b', which doesn't come back with this start" in caplog.text


def test_a_removed_store_is_deleted_after_a_while(storage: Storage) -> None:
    run(storage, BOTH, 3)
    [line] = plan(storage, ONE).changes
    assert line.startswith("store 'b' is not in the code any more and is kept for 1m, until 1970-01-01 00:01+00:00;")
    run(storage, ONE, 59)
    assert plan(storage, ONE).changes == ()
    assert plan(storage, ONE).kept == ("store 'b', removed after version 3, until 1970-01-01 00:01+00:00",)
    run(storage, ONE)
    assert plan(storage, ONE).changes == ("store 'b', removed after version 3, is deleted with its entries",)
    over = run(storage, ONE).app
    assert over.store("b") is None
    again = run(storage, BOTH).app.store("b")
    assert again is not None
    assert again.after == 64, "a store of that name is a new one then"


def test_the_tasks_of_removed_stores_are_kept_under_their_number(storage: Storage) -> None:
    run(storage, declared(visits=["seen", "online"], counts=["counts"]))
    gone = run(storage, declared(visits=["seen"]))
    assert numbers(gone) == {"visits": 0, "counts": 1}
    assert [str(task) for task in gone.app.tasks()] == ["0_0", "1_0"]
    assert [store.name for store in gone.app.stores_of(gone.app.tasks()[1])] == ["counts"]
    renamed = run(storage, declared(counts=["seen"]))
    assert numbers(renamed) == {"counts": 0, "counts@1": 1}, "another sub-topology took its name"
    back = run(storage, declared(counts=["seen"], again=["counts", "more"]), counts="continue")
    assert numbers(back) == {"counts": 0, "again": 1}
    assert [store.name for store in back.app.current_stores] == ["seen", "counts", "more"]


def test_a_store_that_starts_over_may_move_to_another_sub_topology(storage: Storage) -> None:
    run(storage, declared(visits=["seen", "online"], counts=["counts"]))
    run(storage, declared(visits=["seen"], counts=["counts"]))
    both = declared(visits=["seen"], counts=["counts", "online"])
    with pytest.raises(AppChanged, match="Entries don't move"):
        start(storage, both, online="continue")
    moved = run(storage, both, online="start_over")
    assert moved.app.number_of("online") == 1


def test_the_plan_of_a_start(storage: Storage) -> None:
    found = plan(storage, BOTH)
    assert str(found) == (
        f"The log of scores at {storage.place} has no version yet.\n"
        "A start changes:\n"
        "  - a log is created\n"
        "  - store 'a' (key-value, key player string) is added and begins, empty, after version 0\n"
        "  - store 'b' (key-value, key player string) is added and begins, empty, after version 0"
    )
    run(storage, BOTH, 2)
    assert str(plan(storage, BOTH)) == (
        f"The log of scores at {storage.place} is at version 2.\n"
        "It fixes the app's id 'scores' and partitions=1.\n"
        "A start changes nothing."
    )
    refused = plan(storage, app_spec(A, B, partitions=2))
    assert refused.refusals == ("The log has 1 partitions; the settings say 2. Set partitions=1.",)
    assert "A start is refused:\n  - The log has 1 partitions" in str(refused)


def test_a_start_logs_its_plan(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    run(storage, BOTH, 2)
    planned = plan(storage, ONE).changes
    with caplog.at_level(logging.INFO):
        start(storage, ONE)
    assert [record.getMessage() for record in caplog.records] == [
        f"this start changes the app: {line}." for line in planned
    ]


class Kill(BaseException):
    """Ends a start or a commit, as a kill does."""


CHANGES: list[tuple[AppSpec, dict[str, str]]] = [
    (ONE, {}),
    (BOTH, {}),
    (ONE, {}),
    (BOTH, {"b": "continue"}),
    (ONE, {}),
    (BOTH, {"b": "start_over"}),
    (app_spec(B, store_spec("c")), {}),
]


def changed_through(storage: Storage) -> None:
    """Releases one after the other, each with one version. A release that was killed is started again."""
    for number, (app, returned) in enumerate(CHANGES, 1):
        done = False
        while not done:
            try:
                log = start(storage, app, **returned)
                if (newest := log.newest()) is None or newest.version < number:
                    grow(log, 1, wall=lambda version: version)
                done = True
            except Kill:
                continue


def outcome(storage: Storage) -> object:
    app = Log.open(storage).app
    files = [app, *(Log.open(storage, commit.app).app for commit in commits_after(Log.open(storage)))]
    return [
        ([(store.name, store.after, store.removed) for store in file.stores], file.number, file.follows)
        for file in files
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_write_of_a_change_changes_nothing(memory: Storage, when: str) -> None:
    creates: list[str] = []
    changed_through(Watched(memory, before=lambda call, name: creates.append(name) if call == "create" else None))
    assert len(CHANGES) == len([name for name in creates if name.startswith(names.COMMITS)])
    expected = outcome(memory)
    for fatal in range(len(creates)):
        calls = 0

        def kill(call: str, name: str, fatal: int = fatal) -> None:
            nonlocal calls
            if call == "create":
                calls += 1
                if calls == fatal + 1:
                    raise Kill(name)

        storage = open_storage(f"memory://{uuid.uuid4()}")
        changed_through(Watched(storage, **{when: kill}))
        assert calls > fatal
        assert outcome(storage) == expected, creates[fatal]


@pytest.mark.parametrize("choice", ["start_over", "continue"])
def test_a_choice_may_stay_in_the_settings_while_its_store_is_removed(storage: Storage, choice: str) -> None:
    """It has no effect until the store comes back: the store stays with its sub-topology."""
    apart = msgspec.structs.replace(app_spec(A, B), subtopologies=subtopologies_of({"a": 0, "b": 1}))
    for code in (apart, app_spec(A), app_spec(A), apart, app_spec(A), apart):
        log = run(storage, code, b=choice)
        assert Log.open(storage, log.app.number).app == log.app, "what was written can be read"


def test_a_plan_names_a_processor_that_is_called_otherwise(storage: Storage) -> None:
    """A class that was renamed: the stores are found by their names, and its sinks aren't."""
    before, after = declared(visits=["seen"], clock=[]), declared(arrivals=["seen"], tick=[])
    run(storage, before)
    assert plan(storage, before).changes == ()
    [line] = plan(storage, after).changes
    assert line.startswith("'visits' is now called 'arrivals' and keeps its stores.")
    assert numbers(run(storage, after))["arrivals"] == 0
    assert plan(storage, after).changes == ()
