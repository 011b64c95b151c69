"""One release of an app's code, as a process: starts on the log, adds to every score, commits a version.

    python -m tests.stores.run_release <folder> <release> <points>

Prints, as JSON, what the release reads after its version. The classes of tests.stores.schemas are the releases.
"""

import json
import sys
from typing import Any

import holdfast as hf
from holdfast.log.appfile import effective
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.stores.access import DictBytes, Now
from tests.log.making import TASK, app_spec, next_commit, replay, sealed
from tests.stores import schemas

PLAYERS = ("ann", "bob")


def store_of(release: Any) -> Any:
    return hf.KeyValueStore("scores", value=release)


def state_of(log: Log) -> DictBytes:
    """The store at the newest version, as any replica has it."""
    bytes_, newest = DictBytes(), log.newest()
    commits = [log.commit(version) for version in range(1, (newest.version if newest else 0) + 1)]  # type: ignore[arg-type]
    for key, value in replay(log, {}, [commit for commit in commits if commit]).items():
        bytes_.put(key, value)
    return bytes_


def read_all(release: Any, log: Log) -> dict[str, Any]:
    store = store_of(release)
    bound = store.bind(state_of(log), Now(wall=1), spec=effective(log.app, store.spec()))
    return {key: value.score for key, value in bound.items()}


def main(folder: str, release: str, points: str) -> None:
    type_ = getattr(schemas, release)
    declared = store_of(type_)
    log = Log.create_or_open(open_storage(folder), app_spec(declared.spec()))
    bytes_ = state_of(log)
    before = dict(bytes_.entries)
    store = declared.bind(bytes_, Now(wall=1), spec=effective(log.app, declared.spec()))
    for player in PLAYERS:
        value = store.get(player) or type_(player, 0)
        value.score += int(points)
        store.put(player, value)
    changed = {key: data for key, data in bytes_.entries.items() if before.get(key) != data}
    newest = log.newest()
    version = (newest.version if newest else 0) + 1
    ref = log.write_segment(TASK, version, sealed(changed, "scores"), inline_limit=0)  # type: ignore[arg-type]
    log.create_commit(next_commit(log, newest, {str(TASK): (ref,)}))
    print(json.dumps({"app": log.app.number, "read": read_all(type_, log)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
