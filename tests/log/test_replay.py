"""A snapshot and the versions after it give the same state as all versions, whatever was cleaned in between."""

import json
import tempfile
import uuid
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.log.cleaning import Cleaner
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.words import NOTHING, Millis, Version
from tests.log import making
from tests.log.making import TASK, alone, app_spec, commits_after, next_commit, replay, sealed

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=4)
STEP = st.one_of(
    st.tuples(st.just("version"), st.lists(CHANGES, max_size=2)),
    st.tuples(st.just("orphan"), CHANGES),
    st.just(("snapshot", None)),
    st.just(("clean", None)),
)


def dump(state: dict[bytes, bytes], folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({key.hex(): value.hex() for key, value in state.items()}))


def load(folder: Path) -> dict[bytes, bytes]:
    stored = json.loads((folder / "state.json").read_text())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in stored.items()}


@settings(max_examples=60)
@given(st.lists(STEP, max_size=25), st.sampled_from([0, 1 << 20]))
def test_any_snapshot_and_later_versions_equal_the_history(steps: list[tuple[str, object]], inline_limit: int) -> None:
    log = Log.create_or_open(open_storage(f"memory://{uuid.uuid4()}"), app_spec())
    clock = ManualClock(Millis(10**12))
    cleaner = Cleaner(log, retention=timedelta(0), sinks=lambda: (), clock=clock, check_leads=alone)
    model: dict[bytes, bytes] = {}
    history = {NOTHING: dict(model)}
    previous = None
    with tempfile.TemporaryDirectory() as scratch:
        for kind, argument in steps:
            version = Version((previous.version if previous else 0) + 1)
            match kind:
                case "version":
                    assert isinstance(argument, list)
                    refs = tuple(
                        log.write_segment(TASK, version, sealed(change), inline_limit=inline_limit)
                        for change in argument
                    )
                    previous = next_commit(log, previous, {str(TASK): refs})
                    log.create_commit(previous)
                    for change in argument:
                        model = {key: value for key, value in {**model, **change}.items() if value is not None}
                    history[version] = dict(model)
                case "orphan":
                    assert isinstance(argument, dict)
                    log.write_segment(TASK, version, sealed(argument), inline_limit=0)
                case "snapshot" if previous is not None:
                    folder = Path(scratch) / uuid.uuid4().hex
                    folder.mkdir()
                    dump(model, folder)
                    log.snapshots.write(
                        TASK, folder, version=Version(previous.version), commit=previous.id, stores={"counts": 0}
                    )
                case _:
                    clock.advance(seconds=700)
                    cleaner.clean()

        newest = log.newest()
        assert newest == previous
        for version in log.snapshots.versions(TASK)[-2:]:
            manifest = log.snapshots.manifest(TASK, version)
            assert manifest is not None
            into = Path(scratch) / f"loaded-{version}"
            making.load(log, manifest, into)
            state = load(into)
            assert state == history[version]
            at, before = version, manifest.commit
            for commit in commits_after(log, version):
                assert commit.previous == before
                assert replay(log, state, [commit]) == history[Version(commit.version)]
                at, before = Version(commit.version), commit.id
            assert at == (previous.version if previous else NOTHING)
        if log.commit(Version(1)) is not None:
            assert replay(log, {}, commits_after(log)) == model
