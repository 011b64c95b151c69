"""Static types of stores, as a type checker sees them."""

import re
from pathlib import Path

import pytest
from mypy import api

USES = """
import msgspec
import holdfast as hf

class UserSession(msgspec.Struct):
    clicks: int = 0

class Uses:
    sessions = hf.KeyValueStore("sessions", value=UserSession, ttl="1h")
    pairs = hf.KeyValueStore("pairs", key=(str, int), value=float)
    triples = hf.KeyValueStore("triples", key=tuple[str, int, bool], value=dict[str, int])
    seen = hf.TimestampedKeyValueStore("seen", key=int, value=UserSession)
    prices = hf.VersionedKeyValueStore("prices", value=int, retention="1h")
    plays = hf.WindowStore("plays", value=int, size="1m")
    visits = hf.SessionStore("visits", key=int, value=UserSession)
    annotated: hf.KeyValueStore[str, UserSession] = hf.KeyValueStore("annotated", value=UserSession)

def use(self: Uses) -> None:
    reveal_type(self.sessions)
    reveal_type(self.sessions.get("ann"))
    reveal_type(self.sessions.get("ann", 5))
    reveal_type(self.sessions["ann"].clicks)
    reveal_type(next(self.pairs.range()))
    reveal_type(self.triples.pop(("a", 1, True)))
    reveal_type(self.seen.get(5))
    reveal_type(self.prices.get("tea", as_of=5))
    reveal_type(self.plays.fetch("ann", 0))
    reveal_type(next(self.plays.fetch("ann", from_=0)))
    reveal_type(next(self.plays.fetch_all()))
    reveal_type(next(self.visits.fetch(1)))
    reveal_type(self.annotated.read_only().get("ann"))
"""
SEEN = [  # a named tuple is shown as its fields and what it falls back to
    "KeyValueStore[str, UserSession]",
    "UserSession | None",
    "UserSession | int",
    "int",
    "tuple[tuple[str, int], float]",
    "dict[str, int]",
    "tuple[UserSession, int, fallback=ValueAndTimestamp[UserSession]] | None",
    "tuple[int, int, int | None, fallback=VersionedRecord[int]] | None",
    "int | None",
    "tuple[int, int]",
    "tuple[tuple[str, int, int, fallback=Windowed[str]], int]",
    "tuple[tuple[int, int, int, fallback=Session[int]], UserSession]",
    "UserSession | None",
]
WRONG = """
def wrong(sessions: hf.KeyValueStore[str, int]) -> None:
    sessions.put("ann", "three")  # wrong
    sessions.put(5, 3)  # wrong
    sessions.read_only().put("ann", 3)  # wrong
    sessions.get("ann") + 1  # wrong
    hf.KeyValueStore("sessions", value=int, colour="red")  # wrong
    hf.WindowStore("plays", value=int)  # wrong
"""


@pytest.mark.timeout(600)
def test_a_type_checker_knows_the_types_of_stores_and_finds_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, root = USES + WRONG, Path(__file__).parents[3]
    file = tmp_path / "uses.py"
    file.write_text(code)
    monkeypatch.setenv("MYPYPATH", str(root / "src"))
    cache = f"--cache-dir={root / '.mypy_cache' / 'uses'}"
    out, errors, _ = api.run(["--strict", "--follow-imports=silent", "--ignore-missing-imports", cache, str(file)])
    assert not errors
    lines = [line for line in out.splitlines() if "uses.py" in line]

    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert [re.sub(r"\w+\.", "", found) for found in revealed] == SEEN  # without the modules

    wrong = {int(line.split(":")[1]) for line in lines if ": error:" in line}
    assert wrong == {n for n, line in enumerate(code.splitlines(), start=1) if line.endswith("# wrong")}
