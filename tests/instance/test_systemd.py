"""systemd is told what happens, where a unit has started the process."""

import socket
from pathlib import Path

import pytest

from holdfast.instance.systemd import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_are_datagrams_to_the_socket_of_the_unit(tmp_path: Path, abstract: bool) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(10)
        listening.bind("\0" + place[1:] if abstract else place)
        notify("READY=1", "STATUS=serves", environment={"NOTIFY_SOCKET": "@" + place[1:] if abstract else place})
        assert listening.recv(1_000) == b"READY=1\nSTATUS=serves"


def test_without_a_unit_nothing_happens(tmp_path: Path) -> None:
    notify("READY=1", environment={})
    notify("READY=1", environment={"NOTIFY_SOCKET": str(tmp_path / "gone")})
