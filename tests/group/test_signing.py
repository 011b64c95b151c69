"""With a shared token, what nobody with the token has written is ignored: it misleads nobody and ends nobody."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.group.generations import Generations, Place
from holdfast.group.members import Members, MemberState
from holdfast.group.signing import NotSigned, is_signed, keys_of, signed, signing
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import Credentials
from holdfast.log import documents, names, operator_requests
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.settings.security import SecuritySettings
from tests.group.making import LOG, Member, member, new_storage, put
from tests.group.servers import Server
from tests.group.stepping import Group, newest
from tests.group.test_servers import game
from tests.instance.processes import until

TOKEN, NEXT, STRANGERS = b"a-token-of-the-app", b"the-next-token-of-it", b"a-token-of-a-stranger"
NAME = names.member("a")


def grouped(*ids: str) -> tuple[Group, Storage]:
    """A group whose processes share a token, and its log as someone without it sees it."""
    plain = new_storage()
    group = Group(storage=signing(plain, LOG, [TOKEN]))
    driver = group.driver()
    group.join(*ids)
    for _ in range(8):
        group.round(driver=driver)
    assert sorted(newest(group).members) == sorted(ids)
    return group, plain


FORGERS: dict[str, Callable[[Storage], Storage]] = {
    "without a token": lambda plain: plain,
    "with another token": lambda plain: signing(plain, LOG, [STRANGERS]),
    "of another log": lambda plain: signing(plain, "another log", [TOKEN]),
}


@pytest.mark.parametrize("forger", FORGERS.values(), ids=FORGERS)
def test_a_forged_heartbeat_ends_nobody_and_is_named_once(
    forger: Callable[[Storage], Storage], caplog: pytest.LogCaptureFixture
) -> None:
    group, plain = grouped("a", "b")
    driver, before = group.driver(), newest(group)
    with caplog.at_level(logging.WARNING):
        for beat in range(6):
            put(forger(plain), member("a", beat, incarnation=99, process="forged"), member("c", beat))
            group.round(driver=driver)
    assert newest(group) == before
    assert caplog.text.count(f"{names.member('c')} in ") == 1 and "security.token_file" in caplog.text


@pytest.mark.parametrize("forger", FORGERS.values(), ids=FORGERS)
def test_a_forged_generation_moves_nothing(forger: Callable[[Storage], Storage]) -> None:
    group, plain = grouped("a", "b")
    before, hosted = newest(group), {id: dict(host.roles) for id, host in group.hosts.items()}
    place = Place(active="a", standbys=("b",))
    forged = msgspec.structs.replace(before, number=before.number + 1, tasks=dict.fromkeys(before.tasks, place))
    forger(plain).create(names.generation(forged.number), documents.encode(forged))
    group.round()
    assert {id: host.roles for id, host in group.hosts.items()} == hosted
    assert newest(group) == before


def test_a_forged_heartbeat_of_the_driver_does_not_end_it() -> None:
    group, plain = grouped("a", "b")
    left = Member(log=LOG, id="driver", incarnation=1, process="p", beat=9, address="", state=MemberState.LEFT)
    plain.replace(names.DRIVER_HEARTBEAT, documents.encode(left))
    group.round()
    assert all(each.coordinator is None for each in group.members.values())


def test_each_token_of_a_rotation_is_accepted() -> None:
    plain = new_storage()
    old, both, new = (signing(plain, LOG, tokens) for tokens in ([TOKEN], [NEXT, TOKEN], [NEXT]))
    put(old, member("a"))
    assert list(Members(both, LOG).read()) == ["a"]
    assert not Members(new, LOG).read()
    put(both, member("a"))
    assert list(Members(new, LOG).read()) == ["a"]
    assert not Members(old, LOG).read()


def test_a_process_without_a_token_reads_what_is_signed() -> None:
    group, plain = grouped("a")
    assert Members(plain, LOG).read() == Members(group.storage, LOG).read()
    assert Generations(plain, LOG).follow() == newest(group)


def test_a_signature_is_for_one_name() -> None:
    data = signed(documents.encode(member("a")), keys_of([TOKEN])[0], NAME, LOG)
    assert is_signed(data, keys_of([NEXT, TOKEN]), NAME, LOG)
    assert not is_signed(data, keys_of([TOKEN]), names.DRIVER_HEARTBEAT, LOG)


@pytest.mark.parametrize("length", [0, 10, 47, 60, 130, 200])
def test_no_beginning_of_an_object_is_signed(length: int) -> None:
    plain = new_storage()
    ours = signing(plain, LOG, [TOKEN])
    put(ours, member("a"))
    plain.replace(NAME, plain.get(NAME)[:length])
    with pytest.raises(NotSigned):
        ours.get(NAME)


def test_what_an_operator_asks_needs_no_signature() -> None:
    group, plain = grouped("a", "b")
    driver = group.driver()
    operator_requests.ask(plain, names.drain("b"), LOG)
    for _ in range(8):
        group.round(driver=driver)
    assert not newest(group).hosted_by("b")


def test_a_signed_heartbeat_looks_as_it_always_did() -> None:
    plain = new_storage()
    put(signing(plain, LOG, [TOKEN]), member("a"))
    assert plain.get(NAME) == GOLDEN


GOLDEN = (
    b'{"checksum":"0fef42a49fe74e0dc5b4c36b7a081fa5",'
    b'"signature":"c65f6c9e5d0d942a610647bc2b63babc7914b8c28e64c29236b835c5110ab7a6",'
    b'"format":1,"log":"log-1","id":"a","incarnation":1,"process":"process-a","beat":1,"pace":0.0,'
    b'"address":"grpc://a:1","rest":null,"host":"","pid":0,"tags":{},"state":"joined","generation":0,"tasks":{}}'
)


def test_servers_with_a_token_believe_only_what_is_signed(tmp_path: Path) -> None:
    security = SecuritySettings(token=TOKEN.decode())
    with (
        Server(tmp_path, "a", {"SECURITY__TOKEN": TOKEN.decode()}) as a,
        game(tmp_path, security=security) as app,
    ):
        app.commit(1)
        assert a.address
        app.start()
        plain, log = open_storage(str(tmp_path / "log")), app.driver.log.id
        begun = beats(plain, log)
        forged = member("a", log=log, incarnation=99, process="forged", address=a.address)
        with StateClient(a.address, 30.0, credentials=Credentials.of(security)) as client:
            before = client.status()

            def is_replaced() -> bool:
                """Its next heartbeat is in place of the forged one."""
                put(plain, forged)
                until(lambda: Members(plain, log).read()["a"].process == before.process, "a beats")
                return beats(plain, log) > begun + 3

            until(is_replaced, "a has read the forged heartbeat several times")
            assert client.status().process == before.process
        app.commit(2)
        app.instances.wait_until_visible(app.driver.version)
        assert a.running


def beats(storage: Storage, log: str) -> int:
    return Members(storage, log).read()["a"].beat
