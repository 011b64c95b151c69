"""The memory engine's checkpoints: readable, and never a wrong answer when damaged."""

from pathlib import Path

import pytest

from holdfast.stores.engines.base import DamagedState, Resources
from holdfast.stores.engines.memory import CONTENTS
from holdfast.stores.engines.registry import open_engine
from tests.stores import history
from tests.stores.making import specs


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    engine = open_engine("memory", tmp_path / "state", specs(history.FAMILIES), Resources(0))
    history.catch_up(engine, 2)
    assert engine.memory_bytes() == sum(
        len(key) + len(value) for entries in history.state_of(engine).values() for key, value in entries.items()
    )
    engine.checkpoint(tmp_path / "copy")
    engine.close()
    return tmp_path / "copy"


def test_without_a_checkpoint_the_engine_is_empty_at_open(checkpoint: Path) -> None:
    engine = open_engine("memory", checkpoint.parent / "state", specs(history.FAMILIES), Resources(0))
    assert engine.mark() is None
    assert history.state_of(engine) == history.state_at(0)


def test_a_checkpoint_has_everything(checkpoint: Path) -> None:
    engine = open_engine("memory", checkpoint, specs(history.FAMILIES), Resources(0))
    assert engine.mark() == history.mark(2)
    assert history.state_of(engine) == history.state_at(2)
    assert engine.disk_bytes() > 10_000


@pytest.mark.parametrize("name", ["counts.arrow", "quiet.arrow", CONTENTS])
def test_damage_is_noticed_at_open(checkpoint: Path, name: str) -> None:
    whole = (checkpoint / name).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    altered = whole.replace(b'"version":2', b'"version":3') if name == CONTENTS else whole[:-1]
    for data in (b"", whole[: len(whole) // 2], bytes(flipped), altered):
        (checkpoint / name).write_bytes(data)
        with pytest.raises(DamagedState, match=str(checkpoint)):
            open_engine("memory", checkpoint, specs(history.FAMILIES), Resources(0))


def test_a_missing_file_is_noticed_at_open(checkpoint: Path) -> None:
    (checkpoint / "names.arrow").unlink()
    with pytest.raises(DamagedState, match=r"names\.arrow is missing"):
        open_engine("memory", checkpoint, specs(history.FAMILIES), Resources(0))
