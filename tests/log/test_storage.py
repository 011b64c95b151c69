"""What every storage guarantees, tested on each kind of storage."""

import os
import re
import threading
from pathlib import Path

import pytest

from holdfast.errors import ErrorCategory, SettingsError, StorageUnavailable
from holdfast.log.objects import ObjectMissing, Put, Storage, StorageRefused
from holdfast.log.storage import open_storage
from tests import s3
from tests.log.conftest import QUICK


def test_an_object_is_created_once_and_never_changed(storage: Storage) -> None:
    assert storage.create("a/b.json", b"first") is Put.CREATED
    assert storage.create("a/b.json", b"second") is Put.EXISTS
    assert storage.get("a/b.json") == b"first"
    assert storage.exists("a/b.json")
    assert not storage.exists("a/c.json")
    assert not storage.exists("a")


def test_of_many_creates_of_one_name_one_wins(storage: Storage) -> None:
    storage.create("before", b"")
    start, results = threading.Barrier(8), dict[int, Put]()

    def create(number: int) -> None:
        start.wait()
        results[number] = storage.create("race", str(number).encode())

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [number for number, put in results.items() if put is Put.CREATED]
    assert storage.get("race") == str(winner).encode()


def test_ranges_end_where_the_object_ends(storage: Storage) -> None:
    storage.create("a", b"0123456789")
    assert storage.get_range("a", 2, 3) == b"234"
    assert storage.get_range("a", 8, 10) == b"89"
    assert storage.get_range("a", 10, 5) == b""
    assert storage.get_range("a", 50, 5) == b""
    assert storage.get_range("a", 3, 0) == b""


def test_empty_and_large_objects(storage: Storage, tmp_path: Path) -> None:
    storage.create("empty", b"")
    assert storage.get("empty") == b""
    large = os.urandom(12 << 20)
    storage.create("large", large)
    assert storage.get("large") == large
    file = tmp_path / "file"
    file.write_bytes(large)
    storage.create_file("files/large", file)
    storage.create_file("files/large", file)
    assert storage.get("files/large") == large
    (tmp_path / "empty").write_bytes(b"")
    storage.create_file("files/empty", tmp_path / "empty")
    assert storage.get("files/empty") == b""


def test_lists_are_sorted_and_start_after_a_name(storage: Storage) -> None:
    assert storage.list("a/") == []
    assert storage.list_flat("a/") == []
    for name in ("a/3", "a/1", "a/2", "a/deep/er/4", "ab/5", "6"):
        storage.create(name, b"")
    assert storage.list("a/") == ["a/1", "a/2", "a/3", "a/deep/er/4"]
    assert storage.list("a/", after="a/1") == ["a/2", "a/3", "a/deep/er/4"]
    assert storage.list("a/", after="a/15") == ["a/2", "a/3", "a/deep/er/4"]
    assert storage.list("a/", after="a/1", before="a/3") == ["a/2"]
    assert storage.list("", before="a/2") == ["6", "a/1"]
    assert storage.list_flat("a/") == ["a/1", "a/2", "a/3"]
    assert storage.list("") == ["6", "a/1", "a/2", "a/3", "a/deep/er/4", "ab/5"]


def test_deleting_missing_objects_is_no_error(storage: Storage) -> None:
    for name in ("a/1", "a/2", "a/3"):
        storage.create(name, b"")
    storage.delete(["a/1", "a/none", "a/3"])
    storage.delete([])
    assert storage.list("a/") == ["a/2"]


def test_a_missing_object_is_an_error_with_its_name(storage: Storage) -> None:
    storage.create("a/here", b"")
    with pytest.raises(ObjectMissing, match="a/gone") as raised:
        storage.get("a/gone")
    assert storage.place in str(raised.value)
    with pytest.raises(ObjectMissing, match="a/gone"):
        storage.get_range("a/gone", 0, 1)


def test_memory_storages_of_one_name_are_shared() -> None:
    open_storage("memory://shared-name").create("x", b"1")
    assert open_storage("memory://shared-name").get("x") == b"1"
    assert not open_storage("memory://other-name").exists("x")


def test_a_file_url_and_its_path_are_the_same_storage(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    open_storage(str(folder)).create("x", b"1")
    assert open_storage(folder.as_uri()).get("x") == b"1"


def test_opening_a_folder_that_is_not_there_writes_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "log"))
    assert storage.list("") == []
    assert not storage.exists("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["ftp://host/log", "file://host/log", "http://host/log"])
def test_an_unknown_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"log\.url"):
        open_storage(url)


def test_wrong_credentials_are_refused_at_once_and_never_shown(s3_server: s3.S3Server) -> None:
    options = {**s3_server.options, "secret_access_key": "hunter2-hunter2"}
    storage = open_storage(f"{s3_server.url}/x", options, retry=QUICK)
    for call in (lambda: storage.create("a", b""), lambda: storage.get("a"), lambda: storage.list("a/")):
        with pytest.raises(StorageRefused, match=r"SignatureDoesNotMatch: .* Check that .* credentials") as raised:
            call()
        assert "<" not in str(raised.value)
        assert raised.value.category is ErrorCategory.INVALID
        assert raised.value.__cause__ is None
        assert "hunter2" not in f"{raised.value} {raised.value!r} {storage!r}"
        assert s3_server.options["access_key_id"] not in str(raised.value)


def test_a_missing_bucket_is_refused(s3_server: s3.S3Server) -> None:
    storage = open_storage("s3://no-such-bucket/x", s3_server.options, retry=QUICK)
    for call in (lambda: storage.create("a", b""), lambda: storage.get("a"), lambda: storage.list("a/")):
        with pytest.raises(StorageRefused, match=r"no-such-bucket.* NoSuchBucket: .*bucket exists"):
            call()


def test_an_unreachable_server_is_an_error_after_retries(s3_server: s3.S3Server) -> None:
    options = {**s3_server.options, "endpoint": "http://127.0.0.1:9"}
    storage = open_storage(f"{s3_server.url}/x", options, retry=QUICK)
    with pytest.raises(StorageUnavailable, match="Check the address and the network") as raised:
        storage.create("a", b"")
    assert raised.value.category is ErrorCategory.RETRY


def test_an_outage_is_warned_of_once_a_minute(s3_server: s3.S3Server, caplog: pytest.LogCaptureFixture) -> None:
    options = {**s3_server.options, "endpoint": "http://127.0.0.1:9"}
    storage = open_storage(f"{s3_server.url}/x", options, retry=QUICK)
    texts = set()
    for _ in range(3):
        with pytest.raises(StorageUnavailable) as raised:
            storage.get("a")
        texts.add(str(raised.value))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(texts) == 1, "so that who keeps trying can report it once"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3", {"secret_acces_key": "hunter2"}, "no option 'secret_acces_key'. Did you mean 'secret_access_key'"),
        ("s3", {"AWS_SECRET_ACCESKEY": "hunter2"}, "Did you mean 'secret_access_key'"),
        ("s3", {"allow_http": "yes"}, "allow_http is 'yes'. Use 'true' or 'false'"),
        ("s3", {"aws_allow_http": "yes"}, "aws_allow_http is 'yes'"),
        ("s3", {"region": "a", "aws_region": "b"}, "has 'region' and 'aws_region', which are the same"),
        ("s3", {"endpoint": "localhost:9000"}, "is 'localhost:9000'. Write http:// or https://"),
        ("s3", {"timeout": "soon"}, '"soon" as Duration'),
        ("gs", {"google_servce_account": "x"}, "Did you mean 'service_account'"),
        ("az", {"acount_name": "x"}, "Did you mean 'account_name'"),
        ("az", {"zzz": "x"}, "no option 'zzz'. Its options are account_key, account_name"),
    ],
)
def test_a_wrong_option_is_refused_with_the_right_name(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)) as raised:
        open_storage(f"{url}://bucket/x", options)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["endpoint", "aws_endpoint", "AWS_ENDPOINT_URL", "endpoint_url"])
def test_options_are_taken_under_their_usual_names(s3_server: s3.S3Server, endpoint: str) -> None:
    options = {
        endpoint: s3_server.options["endpoint"],
        "aws_access_key_id": s3_server.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_server.options["secret_access_key"],
        "aws_region": s3_server.options["region"],
        "aws_allow_http": "true",
    }
    storage = open_storage(f"{s3_server.url}/{endpoint}", options)
    assert (storage.create("a", b"1"), storage.get("a")) == (Put.CREATED, b"1")


def test_credentials_come_from_the_environment(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.options["endpoint"])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", s3_server.options["region"])
    for name in ("access_key_id", "secret_access_key"):
        monkeypatch.setenv(f"AWS_{name.upper()}", s3_server.options[name])
    storage = open_storage(f"{s3_server.url}/from-the-environment")
    assert (storage.create("a", b"1"), storage.get("a")) == (Put.CREATED, b"1")


@pytest.mark.parametrize("options", [{}, {"timeout": "30s"}])
def test_an_http_endpoint_of_the_environment_needs_no_other_option(
    s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """As in the options. An option of the HTTP client doesn't change what the environment says."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.options["endpoint"])
    given = {name: value for name, value in s3_server.options.items() if name not in ("endpoint", "allow_http")}
    storage = open_storage(f"{s3_server.url}/http", {**given, **options}, retry=QUICK)
    assert not storage.exists("a")


def test_a_value_that_cannot_be_read_is_refused_with_its_option() -> None:
    with pytest.raises(SettingsError, match=r"option timeout='soon' can't be used: .*Duration"):
        open_storage("s3://bucket/log", {"region": "eu-1", "timeout": "soon"})


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any, the machine's own role is asked; a machine that has none refuses that, or doesn't answer."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {"region": "eu-1", "endpoint": "http://127.0.0.1:9", "timeout": "1s", "connect_timeout": "1s"}
    storage = open_storage("s3://bucket/log", {**options, "metadata_endpoint": "http://127.0.0.1:9"}, retry=QUICK)
    with pytest.raises(StorageUnavailable, match=r"This process has no credentials for it .* before the Spark session"):
        storage.create("a", b"")


def test_gcs_and_azure_take_their_usual_names() -> None:
    """Opening asks nothing of the network."""
    open_storage("gs://bucket/x", {"GOOGLE_BEARER_TOKEN": "t", "timeout": "5s"})
    open_storage("az://container/x", {"AZURE_STORAGE_ACCOUNT_NAME": "me", "azure_storage_account_key": "aHVudGVyMg=="})
    open_storage("abfss://container@me.dfs.core.windows.net/x", {"sas_token": "sv=1"})
