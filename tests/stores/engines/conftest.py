"""Engines are tested on a real disk, where direct I/O and fsync do something; other tests' folders may be in memory."""

from tests.disk import tmp_path

__all__ = ["tmp_path"]
