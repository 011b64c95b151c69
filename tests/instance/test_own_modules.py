"""An instance can import the same modules as the app: users' hooks, engines and codecs, which may print."""

from pathlib import Path

import pytest

from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import store_spec
from tests.apps import settings
from tests.instance.embedded import start_once

HOOK = """
def tune(store, tunable):
    tunable.options.set_max_bytes_for_level_base(7_654_321)
"""


PRINTS_AT_IMPORT = 'print("own_tuning is imported")\n'
PRINTS_MUCH = """
import sys
sys.stdout.write(("x" * 1023 + "\\n") * 4096)
sys.stdout.flush()
"""


@pytest.mark.parametrize("first", ["", PRINTS_AT_IMPORT, PRINTS_MUCH], ids=["silent", "prints", "prints megabytes"])
def test_a_module_beside_the_main_script_is_found(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "own_tuning.py").write_text(first + HOOK)
    monkeypatch.syspath_prepend(str(project))  # as Python does with the main script's folder
    monkeypatch.chdir(tmp_path)
    chosen = settings(tmp_path)
    key = Schema.of(k="string")
    spec = store_spec("tuned", "key-value", key=key, codec="msgpack/1", rocksdb_options="own_tuning:tune")
    start_once(chosen, spec)
    newest = max(Path(chosen.state_dir("app")).rglob("OPTIONS-*"), key=lambda path: path.name)
    assert "max_bytes_for_level_base=7654321" in newest.read_text()
