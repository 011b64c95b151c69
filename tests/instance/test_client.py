"""How an instance is reached again."""

import contextlib
import socket
import threading

import pytest

from holdfast.instance.client import StateClient
from holdfast.instance.messages import InstanceUnavailable
from tests.instance.processes import until


def test_an_instance_that_is_away_is_connected_to_again_and_again() -> None:
    """With gRPC's own pauses, which grow, 15 attempts take three minutes, and calls in a pause fail without one."""
    attempts = 0

    def refuse(listener: socket.socket) -> None:
        nonlocal attempts
        with contextlib.suppress(OSError):  # it was closed
            while True:
                listener.accept()[0].close()
                attempts += 1

    def fails() -> bool:
        with contextlib.suppress(InstanceUnavailable):
            client.status()
        return attempts >= 15

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, args=(listener,), daemon=True).start()
        with StateClient(f"grpc://127.0.0.1:{listener.getsockname()[1]}", 1.0) as client:
            until(fails, "there are 15 attempts")
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("address", ["grpc://a..b:7070", f"grpc://{'x' * 70}:7070", "grpc://[::1:7070", "grpc://%:1"])
def test_an_address_that_can_be_none_is_an_instance_that_cannot_be_reached(address: str) -> None:
    with pytest.raises(InstanceUnavailable), StateClient(address, 2.0) as client:
        client.status()
