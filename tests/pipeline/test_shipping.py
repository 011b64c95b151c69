"""Classes of the main script, shipped to another process."""

import subprocess
import sys
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec
import pytest

from holdfast.pipeline.shipping import ship, unship

SHIPPED = """
import dataclasses, sys
from holdfast.pipeline.shipping import ship

@dataclasses.dataclass
class Player:
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)
    level: int = 7

with open(sys.argv[1], "wb") as file:
    file.write(ship(Player))
"""

READ = """
import dataclasses, sys
import msgspec
from holdfast.pipeline.shipping import unship

with open(sys.argv[1], "rb") as file:
    Player = unship(file.read())
player = msgspec.msgpack.decode(msgspec.msgpack.encode({"name": "ann"}), type=Player)
assert (player.name, player.tags, player.level) == ("ann", [], 7), player
assert [field.default is dataclasses.MISSING for field in dataclasses.fields(Player)] == [True, True, False]
try:
    msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=Player)
except msgspec.ValidationError as error:
    print(error)
"""


def test_a_shipped_dataclass_keeps_its_defaults(tmp_path: Path) -> None:
    for name, program in (("ship.py", SHIPPED), ("read.py", READ)):
        (tmp_path / name).write_text(program)
        command = [sys.executable, str(tmp_path / name), str(tmp_path / "class")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "missing required field `name`" in done.stdout


def test_a_shipped_typed_dict_keeps_its_keys() -> None:
    class Base(TypedDict):
        name: str

    class Player(Base, total=False):
        level: int
        tags: NotRequired[list[str]]

    shipped = unship(ship(Player))
    assert msgspec.convert({"name": "ann", "tags": ["a"]}, shipped) == {"name": "ann", "tags": ["a"]}
    with pytest.raises(msgspec.ValidationError, match="missing required field `name`"):
        msgspec.convert({"level": 3}, shipped)
