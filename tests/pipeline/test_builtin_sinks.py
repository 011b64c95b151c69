"""The built-in sinks: how a file sink's folder may be given, and what it refuses after the log was set back."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.pipeline.sinks.builtin import Files
from holdfast.topology.sink import OtherTimeline, Rows
from holdfast.words import TaskId, Version
from tests.log.making import timeline

ROWS = [Rows(TaskId(0, 1), 0, pa.table({"n": [1]})), Rows(TaskId(0, 2), 0, pa.table({"n": [2]}))]
SIX = {number: f"a{number}" for number in range(1, 7)}
"""The commits of a log at version 6."""
SET_BACK = {1: "a1", 2: "a2", 3: "a3"}
"""The commits after it was set back to version 3."""


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: f"file:{path}"])
def test_the_folder_of_a_file_sink_may_be_a_path_a_text_or_an_address(
    form: Callable[[Path], str | Path], tmp_path: Path
) -> None:
    sink = hf.files(form(tmp_path / "out"))
    sink.open(timeline())
    assert (tmp_path / "out" / "_log.json").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("out", "./out/"),
        ("out", "link"),
        ("/out", "file:/out"),
        ("/out", "file:///new/../out"),
        ("s3://bucket/out", "s3a://bucket/out/"),
        ("s3://bucket", "s3a://bucket/"),
        ("s3://bucket/my out", "s3://bucket/my%20out"),
        ("az://box/out", "azure://box/out"),
        ("abfs://box@account.dfs.core.windows.net/out", "abfss://box@account.dfs.core.windows.net/out"),
    ],
)
def test_a_folder_is_the_same_under_each_of_its_names(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("link").symlink_to("out")
    assert Files(one).folder == Files(other).folder != Files(f"{other}2").folder


def written(folder: Path, versions: dict[int, str]) -> None:
    """A folder with the files of these commits."""
    sink = Files(folder)
    sink.open(timeline())
    for version, commit in versions.items():
        sink.write(Version(version), commit, iter(ROWS))


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"_log.json"}


def files_of(versions: dict[int, str]) -> set[str]:
    """The files of these versions: one per task with rows, and the mark."""
    data = {f"{version:020d}-{commit}-0_{n}-0.parquet" for version, commit in versions.items() for n in (1, 2)}
    return data | {f"_versions/{version:020d}.json" for version in versions}


@pytest.mark.parametrize("position", [2, 3, None], ids=["after a crash", "after a stop", "new to the log"])
@pytest.mark.parametrize("lost", ["nothing", "marks", "files"])
def test_files_of_versions_that_the_log_lost_are_refused_by_name(
    tmp_path: Path, position: int | None, lost: str
) -> None:
    written(tmp_path, SIX)
    kept = {name for name in files_of(SIX) if lost == "nothing" or name.startswith("_") == (lost == "files")}
    for name in names_in(tmp_path) - kept:
        (tmp_path / name).unlink()
    back = timeline(newest=3, position=position, commits=SET_BACK)
    with pytest.raises(OtherTimeline, match=r"files of versions 4 to 6 .* at version 3 .* another folder") as error:
        Files(tmp_path).open(back)
    named = {name for name in kept if name in str(error.value)}
    assert named == kept - files_of(SET_BACK)
    for name in named:
        (tmp_path / name).unlink()
    sink = Files(tmp_path)
    sink.open(back)
    sink.write(Version(3), "a3", iter(ROWS))  # after a crash it gets the newest version again
    sink.write(Version(4), "b4", iter(ROWS))
    after = files_of({3: "a3", 4: "b4"})
    assert names_in(tmp_path) - after == kept & files_of({1: "a1", 2: "a2"})


@pytest.mark.parametrize("position", [3, None])
def test_files_of_versions_that_the_log_has_made_again_are_refused(tmp_path: Path, position: int | None) -> None:
    """The app ran without the sink after the log was set back."""
    written(tmp_path, SIX)
    again = SET_BACK | {number: f"b{number}" for number in range(4, 9)}
    with pytest.raises(OtherTimeline, match=r"versions 4 to 6 .* is at version 8"):
        Files(tmp_path).open(timeline(newest=8, position=position, commits=again))


def test_files_that_no_commit_can_have_are_refused_though_the_log_was_cleaned(tmp_path: Path) -> None:
    written(tmp_path, SIX)
    with pytest.raises(OtherTimeline, match=r"versions 4 to 6 .* is at version 8") as error:
        Files(tmp_path).open(timeline(newest=8, position=3, commits={7: "b7", 8: "b8"}))
    assert "name=" not in str(error.value), "the sink has more than the one version after its position"


def test_the_files_of_this_log_are_accepted(tmp_path: Path) -> None:
    """Also those of a driver that makes versions while another one starts, and those of versions that were cleaned."""
    written(tmp_path, SIX)
    for newest, position, commits in ((6, 5, SIX), (6, 6, SIX), (4, 3, SIX), (6, 5, {6: "a6"}), (9, 6, {9: "a9"})):
        Files(tmp_path).open(timeline(newest=newest, position=position, commits=commits))
    for newest, commits in ((6, SIX), (4, SIX), (6, {6: "a6"}), (9, {9: "a9"})):
        Files(tmp_path).open(timeline(newest=newest, commits=commits))


def test_a_version_that_cannot_be_compared_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The app ran without the sink until the commits were cleaned: version 6 may be one that the log lost."""
    written(tmp_path, SIX)
    back = timeline(newest=100, position=5, commits={number: f"c{number}" for number in range(90, 101)})
    what = "If the log was not set back, .* give it another name="
    with pytest.raises(OtherTimeline, match=f"files of versions 6 to 6 .* at version 100 .*{what}"):
        Files(tmp_path).open(back)
    with pytest.raises(OtherTimeline, match=f"version 6 of commit a6, .* Set the table back to version 5 .*{what}"):
        back.check(6, "a6", "the table")
    back.check(5, "a5", "the table")


def test_a_version_that_a_new_sink_has_of_a_cleaned_log_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the folder of a sink that has another name now, and had no rows for long."""
    written(tmp_path, SIX)
    Files(tmp_path).open(timeline(newest=100, commits={100: "a100"}))
    [message] = caplog.messages
    assert "new to log l0g has version 6 of commit a6. The log is at version 100 and has cleaned" in message


@pytest.mark.parametrize("folder", ["another", "emptied"])
def test_a_new_folder_of_a_sink_that_has_a_position_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str
) -> None:
    written(tmp_path / "out", SIX)
    place = tmp_path / ("new" if folder == "another" else "out")
    if folder == "emptied":
        shutil.rmtree(place)
    for _ in range(2):
        Files(place).open(timeline(newest=7, position=6, commits=SIX))
    [message] = caplog.messages
    assert f"{place} is new or was emptied" in message
    assert "version 6. The folder gets the versions after that; earlier ones stay where they were written." in message
    assert "begins after the newest version, 7, give it another name=" in message
    Files(tmp_path / "first").open(timeline())
    Files(tmp_path / "first version").open(timeline(newest=1, position=0, commits={1: "a1"}))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("mark", ["other", "damaged"])
def test_a_version_that_another_commit_has_marked_is_not_mixed(tmp_path: Path, mark: str) -> None:
    written(tmp_path, SIX)
    sink = Files(tmp_path)
    sink.open(timeline(newest=6, position=6, commits=SIX))
    if mark == "damaged":
        (tmp_path / "_versions" / f"{4:020d}.json").write_bytes(b"")
    with pytest.raises(OtherTimeline, match=f"_versions/{4:020d}.json of .*, and version 4 .* is commit b4.*Delete it"):
        sink.write(Version(4), "b4", iter(ROWS))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    sink.write(Version(5), "a5", iter(ROWS))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_many_files_are_named_by_the_first_and_the_last(tmp_path: Path) -> None:
    written(tmp_path, {number: f"a{number}" for number in range(1, 30)})
    with pytest.raises(OtherTimeline) as error:
        Files(tmp_path).open(timeline(newest=3, position=3, commits=SET_BACK))
    assert f"{4:020d}-a4-0_1-0.parquet to {29:020d}-a29-0_2-0.parquet (52 files)" in str(error.value)
    assert f"_versions/{4:020d}.json to _versions/{29:020d}.json (26 files)" in str(error.value)
    assert len(str(error.value)) < 600


def test_rows_in_memory_are_those_of_the_log() -> None:
    memory = hf.memory()
    memory.open(timeline())
    for version, commit in SIX.items():
        memory.write(Version(version), commit, iter(ROWS))
    memory.open(timeline("another log"))
    assert list(memory.versions) == list(SIX)
    memory.open(timeline("another log", newest=3, position=3, commits=SET_BACK))
    assert list(memory.versions) == [1, 2, 3]


@pytest.mark.parametrize("function", [lambda version, rows: None, lambda: None])
def test_a_function_with_other_parameters_is_refused_where_it_is_declared(function: Callable[..., None]) -> None:
    with pytest.raises(hf.HoldfastError, match=r"Give it three parameters: \(version, commit, rows\)"):
        hf.foreach(function)
