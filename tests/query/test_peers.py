"""Queries that are answered by other instances, as these come and go."""

import gc
import socket
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.instance import Instance
from holdfast.query.service import RestService
from holdfast.query.task_readers import TaskReaders
from holdfast.settings.security import SecuritySettings
from holdfast.stores.formats.keys import encode_key
from holdfast.words import TaskId
from tests.query.instances import Driver, config
from tests.query.test_standbys import GAME, KEYS, STORE

OURS, OTHERS = SecuritySettings(token="o" * 32), SecuritySettings(token="t" * 32)
TASK = TaskId(0, 0)


@contextmanager
def instances(folder: Path, *securities: SecuritySettings) -> Iterator[list[Instance]]:
    """One without tasks, with the first security, and one with all tasks for each of the others."""
    driver = Driver(str(folder / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    with ExitStack() as stack:
        found = []
        for number, security in enumerate(securities):
            given = config(folder, f"game-{number}", GAME.tasks() if number else ())
            instance = Instance(msgspec.structs.replace(given, security=security))
            instance.start()
            stack.callback(instance.stop)
            assert instance.wait_ready(30)
            found.append(instance)
        yield found


def test_a_replica_that_refuses_this_instance_is_no_reason_not_to_ask_the_next_one(tmp_path: Path) -> None:
    with instances(tmp_path, OURS, OTHERS, OURS) as (asked, refusing, accepting):
        readers = TaskReaders(asked)
        asked.peers = {str(TASK): (refusing.address, accepting.address)}
        found = readers(TASK)
        assert found is not None
        assert found.get(STORE.name, encode_key(STORE.key, [7])).version == 1
        asked.peers = {str(TASK): (refusing.address,)}
        alone = readers(TASK)
        assert alone is not None
        with pytest.raises(NotAuthenticated):
            alone.get(STORE.name, encode_key(STORE.key, [7]))
        readers.close()


def test_connections_to_instances_that_have_left_are_closed(tmp_path: Path) -> None:
    free = SecuritySettings()
    key = encode_key(STORE.key, [7])
    with instances(tmp_path, free, free, free) as (asked, first, second):
        readers = TaskReaders(asked)
        asked.peers = {str(task): (first.address, second.address) for task in GAME.tasks()}
        for task in GAME.tasks():
            reader = readers(task)
            assert reader is not None
            assert reader.get(STORE.name, key).version == 1
        former = weakref.ref(readers._clients[first.address])
        kept = readers._client(second.address)
        del reader
        asked.peers = {str(task): (second.address,) for task in GAME.tasks()}
        for task in GAME.tasks():
            reader = readers(task)
            assert reader is not None
            assert reader.get(STORE.name, key).version == 1
        assert readers._clients == {second.address: kept}, "the other connection is the same"
        assert len(readers._peers) == len(GAME.tasks())
        gc.collect()
        assert former() is None
        readers.close()


def test_requests_wait_until_the_instance_knows_who_has_the_tasks(tmp_path: Path) -> None:
    free = SecuritySettings()
    with instances(tmp_path, free, free) as (asked, hosting):
        rest = RestService(asked)
        url = httpx2.URL(rest.url)
        with socket.create_connection((url.host, url.port), timeout=30) as early:
            early.sendall(b"GET /v1/stores/numbers/keys/7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            asked.peers = {str(task): (hosting.address,) for task in GAME.tasks()}  # it has joined
            rest.start()
            assert early.recv(12) == b"HTTP/1.1 200"
        rest.stop()


def test_one_that_never_started_lets_go_of_its_port(tmp_path: Path) -> None:
    with instances(tmp_path, SecuritySettings()) as (asked,):
        rest = RestService(asked)
        url = httpx2.URL(rest.url)
        rest.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((url.host, url.port), timeout=30)
