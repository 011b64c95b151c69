"""A log that is set back to a backup while servers run on: the whole of it, as docs/operations.md says."""

from contextlib import ExitStack, nullcontext
from pathlib import Path

import httpx2
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.topology.sink import OtherTimeline
from holdfast.words import Version
from tests.apps import game, points_app, write
from tests.group.servers import Server
from tests.group.test_set_back import Log
from tests.instance.processes import until
from tests.test_checkpoints import repaired

pytestmark = pytest.mark.spark

PLAYERS = ["alice", "bob"]
FRESH = {"STATE__FLUSH_VERSIONS": "2", "STATE__FLUSH_INTERVAL": "100ms"}


class Games:
    """A file of games per version, and an app that counts them on servers."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session, self._folder = session, folder
        self.out = folder / "out"
        self.log = Log(folder / "base" / "points")

    def app(self) -> hf.App:
        return points_app(
            self._session,
            self._folder,
            sink=hf.files(self.out),
            instances="external",
            standbys=1,
            group=hf.GroupSettings(heartbeat_interval="200ms", session_timeout="60s"),
        )

    def play(self, *numbers: int) -> None:
        """Files with these numbers, which Spark reads in this order. Each player's points tell them apart."""
        for number in numbers:
            points = 10**number
            write(self._folder / "input", number, [game("alice", points), game("bob", 2 * points)])

    def refused_files(self) -> list[Path]:
        """The files that a start refuses to write beside."""
        with pytest.raises(OtherTimeline, match="versions 4 to 6 .* at version 3 .* Delete these files") as error:
            self.app().start()
        every = [path for path in self.out.rglob("*") if path.is_file()]
        return [path for path in every if str(path.relative_to(self.out)) in str(error.value)]

    def delivered(self) -> list[tuple[str, int, int]]:
        rows = [row for path in self.out.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        return sorted((row["player"], row["games"], row["points"]) for row in rows)


def total(numbers: list[int]) -> list[dict[str, int]]:
    """What each player has of these files."""
    points = sum(10**number for number in numbers)
    return [{"games": len(numbers), "points": each * points} for each in (1, 2)]


def changes(versions: list[list[int]]) -> list[tuple[str, int, int]]:
    """The rows that a sink gets of versions with these files."""
    rows = [(player, each) for files in versions for player, each in zip(PLAYERS, total(files), strict=True)]
    return sorted((player, each["games"], each["points"]) for player, each in rows)


def answers(server: Server, **demands: str) -> list[object]:
    """The values at REST, or the status where there is none."""
    url = f"{server.addresses['rest']}/v1/stores/points/keys"
    found = [httpx2.get(f"{url}/{player}", params=demands, timeout=30) for player in PLAYERS]
    return [each.json()["value"] if each.status_code == 200 else each.status_code for each in found]


@pytest.mark.parametrize(
    "frozen",
    [pytest.param(False, id="all run on", marks=pytest.mark.slow), pytest.param(True, id="one is frozen meanwhile")],
)
def test_values_answers_and_sinks_are_those_of_the_log_after_it_was_set_back(
    spark: SparkSession, tmp_path: Path, frozen: bool
) -> None:
    games = Games(spark, tmp_path)
    games.play(1, 2, 3)
    with ExitStack() as stack:
        every = [stack.enter_context(Server(tmp_path, id, FRESH, app="points", log=games.log.place)) for id in "abc"]
        awake = every[:2] if frozen else every
        with games.app() as app:
            app.process_all_available()
            games.log.save(Version(app.version))
            games.play(5, 6, 7)
            app.process_all_available()
            until(
                lambda: all(answers(each, at="6") == total([1, 2, 3, 5, 6, 7]) for each in every), "all know version 6"
            )
        with every[2].frozen() if frozen else nullcontext():
            games.log.set_back(3)
            assert "offsets/5" in repaired(tmp_path)
            for path in games.refused_files():
                path.unlink()
            games.play(4)
            with games.app() as app:
                app.process_all_available()
                assert app.version == 4, "Spark had planned the files of the abandoned versions: all are in one batch"
                for server in awake:
                    assert answers(server) == total([1, 2, 3, 4, 5, 6, 7])
                    assert answers(server, at_least="6", wait="0s") == [503, 503], "there is no version 6 any more"
                games.play(8, 9, 10)
                app.process_all_available()
                for server in awake:
                    assert answers(server, at_least="7") == total([*range(1, 11)])
        for server in every:
            assert answers(server, at_least="7", wait="20s") == total([*range(1, 11)])
            assert answers(server, at="6", wait="20s") == total([*range(1, 10)])
            assert "Traceback" not in server.errors(), server.errors()
    batches = [[1], [1, 2], [1, 2, 3], [*range(1, 8)], [*range(1, 9)], [*range(1, 10)], [*range(1, 11)]]
    assert games.delivered() == changes(batches)
