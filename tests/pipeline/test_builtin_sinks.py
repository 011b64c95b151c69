"""The built-in sinks: how a file sink's folder may be given."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.pipeline.sinks.builtin import Files


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: f"file:{path}"])
def test_the_folder_of_a_file_sink_may_be_a_path_a_text_or_an_address(
    form: Callable[[Path], str | Path], tmp_path: Path
) -> None:
    sink = hf.files(form(tmp_path / "out"))
    sink.open("a log")
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
