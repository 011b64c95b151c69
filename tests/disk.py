"""A folder on disk, for tests whose subject is the disk; `tests/conftest.py` puts other folders into memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
