"""Pages end at their bytes: nothing is missing from page to page, and no answer is larger than a page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Point
from holdfast.query import paging
from holdfast.settings.rest import RestSettings
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.kinds.window import WindowStore
from holdfast.words import Version
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import APP, NUMBERS, World, served
from tests.query.instances import Driver, config, process
from tests.query.test_kinds import write

LARGE = "x" * 1_000
MOST = 5_000


@pytest.fixture(params=["here", "elsewhere"])
def rest(request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    world = World(remote=[] if request.param == "here" else list(APP.tasks()), max_page=MOST)
    world.commit(1, NUMBERS, {(n,): LARGE for n in range(40)})
    with served(world.reader) as client:
        yield client


def pages(client: httpx2.Client, path: str, member: str, **params: str) -> Iterator[list[dict[str, Any]]]:
    """The items of each page, up to the last one. No page is empty, or larger than it may be."""
    cursor: str | None = ""
    while cursor is not None:
        answer = client.get(path, params={**params, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < MOST + 2_000
        cursor = answer.json()["cursor"]
        assert answer.json()[member]
        yield answer.json()[member]


@pytest.mark.parametrize("reverse", ["false", "true"])
def test_a_page_of_a_range_ends_at_its_bytes(rest: httpx2.Client, reverse: str) -> None:
    found = [[entry["key"] for entry in page] for page in pages(rest, "/numbers/range", "entries", reverse=reverse)]
    assert {len(page) for page in found} == {5}
    keys = [*range(40)] if reverse == "false" else [*range(39, -1, -1)]
    assert [key for page in found for key in page] == keys
    assert len(next(pages(rest, "/numbers/range", "entries", limit="3"))) == 3


def test_many_keys_beyond_the_bytes_of_a_page_are_refused(rest: httpx2.Client) -> None:
    assert rest.post("/numbers/keys", json=[*range(4)]).status_code == 200
    for answer in (
        rest.post("/numbers/keys", json=[*range(10)]),
        rest.get("/numbers/keys", params=[("key", str(n)) for n in range(10)]),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["error"]) == (413, "too_large")
        assert "10 keys of store 'numbers' have more than 5000B together (rest.max_page)" in problem["message"]
        assert problem["what_to_do"] == "Ask for fewer keys at a time, or for one."


@pytest.mark.parametrize("small", [0, 1_000, 5_000])
def test_few_values_are_read_before_many_keys_are_refused(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes after small values: what is read beyond the limit is one piece."""
    read: list[int] = []
    whole = DictBytes.get_many

    def get_many(bytes_: DictBytes, keys: Sequence[bytes]) -> list[bytes | None]:
        found = whole(bytes_, keys)
        read.append(sum(len(cell) for cell in found if cell is not None))
        return found

    monkeypatch.setattr(DictBytes, "get_many", get_many)
    most, large = 200_000, "x" * 10_000
    world = World(max_page=most)
    world.commit(1, NUMBERS, {(n,): 1 if n < small else large for n in range(small + 3_000)})
    with served(world.reader) as client:
        refused = client.post("/numbers/keys", json=[*range(small + 3_000)])
    assert (refused.status_code, refused.json()["error"]) == (413, "too_large")
    assert max(read) <= 128 * 10_100
    assert sum(read) <= most + 128 * 10_100


def test_one_entry_is_answered_however_large_it_is() -> None:
    world = World(max_page=1)
    world.commit(1, NUMBERS, {(n,): LARGE for n in range(3)})
    with served(world.reader) as client:
        assert client.post("/numbers/keys", json=[2, 7]).json()["entries"][0]["value"] == LARGE
        assert client.get("/numbers/range").json()["entries"] == [{"key": 0, "value": LARGE}]
        assert client.get("/numbers/keys/1").json()["value"] == LARGE


PLAYS = WindowStore("plays", value=str, size="10s", retention="1h")
SPEC = PLAYS.spec(default_engine="memory")
STARTS = range(0, 200_000, 10_000)


@pytest.mark.parametrize("remote", [False, True])
def test_windows_of_all_keys_and_of_one_end_at_the_bytes_of_a_page(remote: bool) -> None:
    app = AppSpec(id="game", partitions=3, stores=(SPEC,), subtopologies=subtopologies_of({"plays": 0}))
    world, now = World(app, remote=list(app.tasks()) if remote else [], max_page=MOST), Now(200_000, 200_000)
    for name in ("ann", "bob", "cleo"):
        write(world, PLAYS, (name,), now, *[(name, LARGE, start) for start in STARTS])
    for task in world.tasks.values():
        task.versions, task.now = {1: task.versions[max(task.versions)]}, now
    with served(world.reader) as client:
        found = list(pages(client, "/plays/windows", "windows"))
        assert [(each["key"], each["start"]) for page in found for each in page] == [
            (name, start) for name in ("ann", "bob", "cleo") for start in STARTS
        ]
        assert {len(page) for page in found} == {5}
        one = client.get("/plays/windows/ann").json()
        assert ([each["start"] for each in one["windows"]], one["more"]) == ([*STARTS[:5]], True)
        rest = client.get("/plays/windows/ann", params={"from": STARTS[-4]}).json()
        assert ([each["start"] for each in rest["windows"]], rest["more"]) == ([*STARTS[-4:]], False)


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(0, 99), st.integers(0, 40), min_size=1),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(1, 100),
    st.booleans(),
)
def test_pages_of_any_size_have_every_entry_once(
    sizes: dict[int, int], limit: int, most: int, share: int, reverse: bool
) -> None:
    """A part with more of a page than its share is read on while the page is merged."""
    world = World(max_page=most)
    world.commit(1, NUMBERS, {(n,): "x" * size for n, size in sizes.items()})
    start, stop, found, more = FIRST_KEY, None, Counter[bytes](), True
    before = Point(Version(1), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_LEAST_SHARE", share)
        while more:
            page = world.reader.range("numbers", start, stop, limit=limit, reverse=reverse, before=before)
            keys = [key for key, _ in page.entries]
            assert keys == sorted(keys, reverse=reverse) and 1 <= len(keys) <= limit
            assert sum(len(key) + len(cell) for key, cell in page.entries[:-1]) < most
            found.update(keys)
            start, stop, more = (start, keys[-1], page.more) if reverse else (keys[-1] + b"\x00", stop, page.more)
    assert set(found.values()) == {1} and len(found) == len(sizes)


def test_a_real_instance_ends_pages_at_the_setting(tmp_path: Path) -> None:
    numbers = AppSpec(id="game", partitions=2, stores=(NUMBERS,), subtopologies=subtopologies_of({"numbers": 0}))
    Driver(str(tmp_path / "log"), numbers).commit(NUMBERS, {(n,): LARGE for n in range(40)})
    asked = config(tmp_path, "game-0", numbers.tasks())
    with process(msgspec.structs.replace(asked, rest=RestSettings(port=0, max_page="5KB"))) as instance:
        with httpx2.Client(base_url=instance.addresses()["rest"], timeout=30) as client:
            until(lambda: client.get("/health/ready").status_code == 200, "it is ready")
            found = [[entry["key"] for entry in page] for page in pages(client, "/v1/stores/numbers/range", "entries")]
            assert found == [[*range(n, n + 5)] for n in range(0, 40, 5)]
            assert client.post("/v1/stores/numbers/keys", json=[*range(10)]).status_code == 413
            scan = client.get("/v1/stores/numbers/scan").text.splitlines()
            assert len(scan) == 41, "a scan is a stream, and has no pages"
