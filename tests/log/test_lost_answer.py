"""Puts that S3 stores and whose answer never arrives, or that it refuses for the moment: a proxy does it for real."""

import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from holdfast.errors import StorageUnavailable
from holdfast.log import names
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.objects import Put, Storage
from holdfast.log.storage import open_storage
from holdfast.words import Version
from tests import s3
from tests.log import making
from tests.log.conftest import QUICK
from tests.log.making import app_spec

CONFLICT_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ConditionalRequestConflict</Code>'
    b"<Message>A conflicting operation is under way.</Message></Error>"
)
CONFLICT = (
    b"HTTP/1.1 409 Conflict\r\nContent-Type: application/xml\r\n"
    + f"Content-Length: {len(CONFLICT_BODY)}\r\n\r\n".encode()
    + CONFLICT_BODY
)


class Proxy:
    """Forwards bytes to the S3 server.

    Once armed, it forwards one PUT and cuts the connection before the answer, or answers one PUT with a conflict.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed = threading.Event()
        self.cuts = 0
        self._conflicts = 0
        self._open: list[socket.socket] = []
        self.conflicts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_the_next_answer(self) -> None:
        self._armed.set()

    def refuse_puts(self, count: int) -> None:
        """Answers the next puts as S3 does while another conditional put of the same name is under way."""
        self._conflicts = count

    def close(self) -> None:
        self._listener.close()
        for side in self._open:
            _shut(side)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            self._open += [client, server]
            answers = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            answers.start()
            self._requests(client, server)
            answers.join()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            if self._conflicts and data.startswith(b"PUT "):
                self._conflicts -= 1
                self.conflicts += 1
                _rest_of_request(client, data)
                client.sendall(CONFLICT)
                continue
            try:
                server.sendall(data)
            except OSError:
                break
        _shut(server)

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


def _rest_of_request(source: socket.socket, data: bytes) -> None:
    while b"\r\n\r\n" not in data:
        data += _received(source)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += _received(source)


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


def test_a_conflict_means_try_again_and_not_stored(proxy: Proxy, storage: Storage) -> None:
    proxy.refuse_puts(2)
    assert storage.create("a", b"data") is Put.CREATED
    assert proxy.conflicts == 2
    assert storage.get("a") == b"data"


def test_a_conflict_that_stays_is_not_taken_for_stored(proxy: Proxy, storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    proxy.refuse_puts(100)
    with pytest.raises(StorageUnavailable, match="another put of the same name"):
        log.write_segment(making.TASK, Version(1), making.sealed({b"k": b"v"}), inline_limit=0)
    with pytest.raises(StorageUnavailable):
        log.create_commit(making.next_commit(log, None))
    proxy.refuse_puts(0)
    assert log.newest() is None
    assert storage.list(names.SEGMENTS) == []


def test_segments_of_all_tasks_whose_answer_was_lost_are_read_back(proxy: Proxy, storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    sealed = making.sealed({b"k": b"v"})
    small = log.write_segment(making.TASK, Version(1), sealed, inline_limit=len(sealed.data))
    assert small.inline is not None
    proxy.cut_the_next_answer()
    stored = log.write_together(Version(1), {str(making.TASK): WrittenSegments((small,))}, inline_bytes=0)
    assert proxy.cuts == 1
    ((ref,),) = [each.segments for each in stored.values()]
    ((_, state),) = log.state_parts(ref)
    assert (state["key"].to_pylist(), state["value"].to_pylist()) == ([b"k"], [b"v"])


def test_a_segment_whose_answer_was_lost_is_read_back(proxy: Proxy, storage: Storage) -> None:
    log = Log.create_or_open(storage, app_spec())
    sealed = making.sealed({b"k": b"v"})
    proxy.cut_the_next_answer()
    ref = log.write_segment(making.TASK, Version(1), sealed, inline_limit=0)
    assert proxy.cuts == 1
    assert ref.name is not None
    assert storage.get(ref.name) == sealed.data
