"""Puts that S3 stores and whose answer never arrives: a proxy cuts the real connection."""

import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from holdfast.log.log import Log
from holdfast.log.objects import Put, Storage
from holdfast.log.storage import open_storage
from holdfast.words import Version
from tests import s3
from tests.log import making
from tests.log.conftest import QUICK
from tests.log.making import app_spec


class Proxy:
    """Forwards bytes to the S3 server. Once armed, it forwards one PUT and cuts the connection before the answer."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed = threading.Event()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_the_next_answer(self) -> None:
        self._armed.set()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            answers = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            answers.start()
            _pump(client, server)
            answers.join()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        while data := _received(server):
            if self._armed.is_set():
                # The server has answered, so it has stored the object.
                self._armed.clear()
                self.cuts += 1
                break
            try:
                client.sendall(data)
            except OSError:
                break
        for side in (client, server):
            _shut(side)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _received(source):
        try:
            target.sendall(data)
        except OSError:
            break
    _shut(target)


def _shut(side: socket.socket) -> None:
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def proxy(s3_server: s3.S3Server) -> Iterator[Proxy]:
    proxy = Proxy(s3_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def storage(s3_server: s3.S3Server, proxy: Proxy) -> Storage:
    options = {**s3_server.options, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    return open_storage(f"{s3_server.url}/{uuid.uuid4()}", options, retry=QUICK)


def test_a_commit_whose_answer_was_lost_has_won(proxy: Proxy, storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    first = making.grow(log, 1)
    commit = making.next_commit(log, first)
    assert log.commit(Version(1)) == first

    def cut_the_next_answer(call: str, name: str) -> None:
        if call == "create":
            proxy.cut_the_next_answer()

    Log.open(making.Watched(storage, before=cut_the_next_answer)).create_commit(commit)
    assert proxy.cuts == 1
    assert log.newest() == commit


def test_an_object_whose_answer_was_lost_exists(proxy: Proxy, storage: Storage) -> None:
    proxy.cut_the_next_answer()
    assert storage.create("a", b"data") is Put.EXISTS, "the client can't know that the object is its own"
    assert proxy.cuts == 1
    assert storage.get("a") == b"data"
