"""The built-in sinks: how a file sink's folder may be given, and what it refuses after the log was set back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.pipeline.sinks.builtin import Files, FolderTaken
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


def id_of(folder: Path) -> str:
    return str(json.loads((folder / "_log.json").read_bytes())["folder"])


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
    with pytest.raises(OtherTimeline, match=r"versions 5 to 6 .* is at version 8"):
        Files(tmp_path).open(timeline(newest=8, position=3, commits={7: "b7", 8: "b8"}, folders={id_of(tmp_path): 3}))


def test_the_files_of_this_log_are_accepted(tmp_path: Path) -> None:
    """Also those of a driver that makes versions while another one starts, and those of versions that were cleaned."""
    written(tmp_path, SIX)
    for newest, position, commits in ((6, 5, SIX), (6, 6, SIX), (4, 3, SIX), (6, 5, {6: "a6"}), (9, 6, {9: "a9"})):
        folders = {id_of(tmp_path): position}
        Files(tmp_path).open(timeline(newest=newest, position=position, commits=commits, folders=folders))
        Files(tmp_path).open(timeline(newest=newest, commits=commits, folders=folders))  # the sink has a new name
    for newest, commits in ((6, SIX), (4, SIX), (6, {6: "a6"})):
        Files(tmp_path).open(timeline(newest=newest, commits=commits))


def test_a_version_that_cannot_be_compared_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The app ran without the sink until the commits were cleaned: version 6 may be one that the log lost."""
    written(tmp_path, SIX)
    commits = {number: f"c{number}" for number in range(90, 101)}
    back = timeline(newest=100, position=5, commits=commits, folders={id_of(tmp_path): 5})
    with pytest.raises(OtherTimeline, match="files of versions 6 to 6, and nothing tells .* another folder"):
        Files(tmp_path).open(back)
    what = "If the log was not set back, .* give it another name="
    with pytest.raises(OtherTimeline, match=f"version 6 of commit a6, .* Set the table back to version 5 .*{what}"):
        back.check(6, "a6", "the table")
    back.check(5, "a5", "the table")


def test_a_version_that_a_new_sink_has_of_a_cleaned_log_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Such as a table whose sink has another name now."""
    timeline(newest=100, commits={100: "a100"}).check(6, "a6", "the table")
    [message] = caplog.messages
    assert "new to log l0g has version 6 of commit a6. The log is at version 100 and has cleaned" in message


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("position", [8, None], ids=["the same name", "a new name"])
def test_an_abandoned_folder_is_refused_when_the_sink_comes_back_to_it(
    tmp_path: Path, position: int | None, cleaned: bool
) -> None:
    """The log was set back from 6 to 3, and the sink of this name has written versions to another folder since."""
    written(tmp_path, SIX)
    commits = {number: f"b{number}" for number in range(8 if cleaned else 4, 9)}
    back = timeline(newest=8, position=position, commits=commits, folders={id_of(tmp_path): 3, "other": 8})
    with pytest.raises(OtherTimeline, match=f"versions {5 if cleaned else 4} to 6 .* Delete these files") as error:
        Files(tmp_path).open(back)
    for name in (name for name in names_in(tmp_path) if name in str(error.value)):
        (tmp_path / name).unlink()
    if cleaned:
        with pytest.raises(OtherTimeline, match=r"versions 4 to 4, and nothing tells .* recorded the versions up to 3"):
            Files(tmp_path).open(back)
    else:
        Files(tmp_path).open(back)
        assert names_in(tmp_path) == files_of(SET_BACK)


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "a copy without _versions"])
@pytest.mark.parametrize("position", [2, 3, None])
def test_a_folder_without_its_log_file_is_compared_before_anything_is_written(
    tmp_path: Path, position: int | None, marked: bool
) -> None:
    written(tmp_path, SIX)
    (tmp_path / "_log.json").unlink()
    if not marked:
        shutil.rmtree(tmp_path / "_versions")
    before = names_in(tmp_path)
    for _ in range(2):  # the first try has left a new _log.json
        with pytest.raises(OtherTimeline, match=r"versions 4 to 6 .* Delete these files"):
            Files(tmp_path).open(timeline(newest=3, position=position, commits=SET_BACK))
        assert names_in(tmp_path) == before
    with pytest.raises(
        OtherTimeline, match=r"versions 1 to 6, and nothing tells .* recorded nothing .* another folder"
    ):
        Files(tmp_path).open(timeline(newest=9, position=9, commits={9: "b9"}))
    Files(tmp_path).open(timeline(newest=6, position=6, commits=SIX))


@pytest.mark.parametrize("position", [2, None])
def test_a_damaged_mark_beside_files_of_the_log_is_not_taken_for_a_set_back(
    tmp_path: Path, position: int | None
) -> None:
    written(tmp_path, SET_BACK)
    mark = tmp_path / "_versions" / f"{3:020d}.json"
    mark.write_bytes(b"\0")
    sink = Files(tmp_path)
    sink.open(timeline(newest=3, position=position, commits=SET_BACK))
    with pytest.raises(OtherTimeline, match="the mark is damaged. Delete it and any files .* aren't of commit a3"):
        sink.write(Version(3), "a3", iter(ROWS))
    mark.unlink()
    sink.write(Version(3), "a3", iter(ROWS))
    assert names_in(tmp_path) == files_of(SET_BACK)


def test_a_folder_has_one_format(tmp_path: Path) -> None:
    """After a crash the sink gets the newest version again, which would be there in both."""
    written(tmp_path, SET_BACK)
    with pytest.raises(FolderTaken, match=r"format 'parquet', and the sink writes 'json'.*another folder"):
        Files(tmp_path, "json").open(timeline(newest=3, position=2, commits=SET_BACK, folders={id_of(tmp_path): 2}))
    assert names_in(tmp_path) == files_of(SET_BACK)


@pytest.mark.parametrize("emptied", [True, False])
def test_a_folder_that_lacks_versions_of_its_sink_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, emptied: bool
) -> None:
    """A position belongs to the sink's name: in another folder, or the former one, it goes on with the next version."""
    old, new = tmp_path / "old", tmp_path / "new"
    written(old, SET_BACK)
    if emptied:
        written(new, SET_BACK)
        shutil.rmtree(new)
    Files(new).open(timeline(newest=3, position=3, commits=SET_BACK, folders={id_of(old): 3}))
    [said] = caplog.messages
    assert f"{new} is new or was emptied, or its _log.json was deleted. Versions up to 3 aren't sent to it" in said
    caplog.clear()
    Files(old).open(timeline(newest=6, position=6, commits=SIX, folders={id_of(old): 3, id_of(new): 6}))
    [said] = caplog.messages
    assert f"{old} was written up to version 3. Versions 4 to 6 aren't sent to it" in said
    caplog.clear()
    Files(new).open(timeline(newest=6, position=6, commits=SIX, folders={id_of(old): 3, id_of(new): 6}))
    Files(tmp_path / "first").open(timeline(newest=6, commits=SIX))
    assert not caplog.messages


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
