"""Heartbeats are read with suspicion: no bytes in their place stop a reader, or make it give someone up."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.group import members
from holdfast.group.members import Members
from holdfast.log import documents, names
from tests.group.making import LOG, Hosted, Member, member, new_storage, put


def _document(text: str) -> bytes:
    body = text.encode()
    return b'{"checksum":"' + documents.checksum(body[1:]).encode() + b'",' + body[1:]


def _with(**fields: str) -> bytes:
    values = {"format": "1", "log": f'"{LOG}"', "id": '"a"', "incarnation": "1", "process": '"p"', "beat": "2"}
    values = values | {"address": '"grpc://a:1"'} | fields
    return _document("{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + "}")


FORGED = {
    "nothing": b"",
    "not a document": b"hello",
    "another id": _with(id='"b"'),
    "another log": _with(log='"x"'),
    "a wrong type": _with(tasks="[]"),
    "a task that is none": _with(tasks='{"zero":{"version":1,"running":true}}'),
    "digits of another script": _with(tasks='{"\\u0660_\\u0663":{"version":1,"running":true}}'),
    "a task with too many digits": _with(tasks='{"0_' + "9" * 5000 + '":{"version":1,"running":true}}'),
    "a number that can't be written": _with(incarnation="1" + "0" * 18),
    "a negative number": _with(tasks='{"0_0":{"version":-1,"running":true}}'),
    "an endless load": _with(tasks='{"0_0":{"version":1,"running":true,"load":1e300}}'),
    "not UTF-8": b'{"checksum":"' + documents.checksum(b'"format":1,"log":"\xff"}').encode() + b'",'
    b'"format":1,"log":"\xff"}',
    "too deep": _with(host="[" * 50_000 + "]" * 50_000),
    "an address that nobody can call": _with(address='"grpc://a:99999"'),
    "a host with an empty label": _with(address='"grpc://a..b:7070"'),
    "a host with a label that is too long": _with(address=f'"grpc://{"x" * 70}:7070"'),
    "a host that is two": _with(address='"grpc://a@b:7070"'),
    "a format to come": _with(format="99"),
    "too large": _with(host='"' + "x" * members.LARGEST + '"'),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_forged_heartbeat_is_ignored_and_named_once(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    storage = new_storage()
    storage.replace(names.member("a"), data)
    put(storage, member("b"))
    found = Members(storage, LOG)
    with caplog.at_level(logging.WARNING):
        assert list(found.read()) == list(found.read()) == ["b"]
        storage.replace(names.member("a"), b"garbage of another kind")
        assert list(found.read()) == ["b"]
        assert caplog.text.count("a member is ignored") == 1 and names.member("a") in caplog.text
        put(storage, member("a"))
        assert list(found.read()) == ["a", "b"]
        storage.replace(names.member("a"), data)
        found.read()
    assert caplog.text.count("a member is ignored") == 2, "it could be believed in between"


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_the_last_heartbeat_that_could_be_believed_counts(data: bytes) -> None:
    storage = new_storage()
    put(storage, member("a", 7))
    found = Members(storage, LOG)
    found.read()
    storage.replace(names.member("a"), data)
    assert found.read()["a"].beat == 7


def test_a_heartbeat_that_was_deleted_is_gone() -> None:
    storage = new_storage()
    put(storage, member("a"))
    found = Members(storage, LOG)
    assert list(found.read()) == ["a"]
    storage.delete([names.member("a")])
    assert not found.read()


@given(st.binary(max_size=200))
def test_no_bytes_stop_a_reader(data: bytes) -> None:
    storage = new_storage()
    storage.replace(names.member("a"), data)
    assert not Members(storage, LOG).read()
    with pytest.raises(DamagedObject):
        members.read(storage, LOG, "a")


@given(
    st.dictionaries(st.from_regex(r"[0-9]{1,3}_[0-9]{1,3}|[a-z_]{1,5}", fullmatch=True), st.integers(-5, 2**70)),
    st.integers(-5, 2**70),
)
def test_what_is_read_can_be_written_again(tasks: dict[str, int], beat: int) -> None:
    hosted = ",".join(f'"{task}":{{"version":{version},"running":true}}' for task, version in tasks.items())
    storage = new_storage()
    storage.replace(names.member("a"), _with(beat=str(beat), tasks="{" + hosted + "}"))
    for each in Members(storage, LOG).read().values():
        assert documents.decode(documents.encode(each), Member, name="", place="", known=1) == each


def test_a_replica_of_a_member_is_read_as_it_was_written() -> None:
    storage = new_storage()
    put(storage, member("a", tasks={"0_3": Hosted(version=7, running=True, load=2.5)}))
    assert Members(storage, LOG).read()["a"].tasks["0_3"] == Hosted(version=7, running=True, load=2.5)
