"""The built-in sinks: how a file sink's folder may be given."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: f"file:{path}"])
def test_the_folder_of_a_file_sink_may_be_a_path_a_text_or_an_address(
    form: Callable[[Path], str | Path], tmp_path: Path
) -> None:
    sink = hf.files(form(tmp_path / "out"))
    sink.open("a log")
    assert (tmp_path / "out" / "_log.json").exists()
