"""Settings: they are validated, come from code, file and environment, and show no secrets."""

import dataclasses
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.settings.load import load, variable_of
from holdfast.settings.model import Settings, all_settings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import (
    BatchSettings,
    LogSettings,
    MemorySettings,
    RestoreSettings,
    RetrySettings,
    SparkSettings,
)
from holdfast.settings.security import SecuritySettings
from holdfast.settings.units import RedactedOptions, format_duration, format_size, parse_duration, parse_size


@pytest.fixture(autouse=True)
def an_empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        call()
    return str(caught.value)


# --- values ----------------------------------------------------------------------------------------------------------


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_a_duration_is_parsed_as_it_was_formatted(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_size_is_parsed_as_it_was_formatted(value: int) -> None:
    assert parse_size(format_size(value)) == value


@pytest.mark.parametrize("text", ["", "10", "s", "10 parsecs", "-5s", "1h 30", "5s!"])
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    message = refused(lambda: parse_duration(text))
    assert repr(text) in message
    assert '"10s"' in message


@pytest.mark.parametrize("text", ["", "10", "MiB", "1 MiB 2", "-1KiB", "1XiB"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    message = refused(lambda: parse_size(text))
    assert repr(text) in message
    assert '"256KiB"' in message


def test_fields_accept_text_and_have_values() -> None:
    settings = Settings(batch=BatchSettings(commit_interval="1m30s"), memory=MemorySettings(limit="2GiB"))
    assert settings.batch.commit_interval == timedelta(seconds=90)
    assert settings.memory.limit == 2 << 30
    assert BatchSettings(commit_interval=timedelta(seconds=90)) == settings.batch


def test_settings_are_immutable_values() -> None:
    settings = Settings(log=LogSettings(options={"region": "x"}))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert dataclasses.replace(settings, partitions=9).log is settings.log
    assert hash(settings) == hash(Settings(log=LogSettings(options={"region": "x"})))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.partitions = 3  # type: ignore[misc]


def test_folders_are_in_the_base_folder_by_default() -> None:
    settings = Settings(base_dir="data")
    assert settings.log_url("pulse") == "data/pulse/log"
    assert settings.state_dir("pulse") == Path("data/pulse/state")
    assert settings.checkpoint("pulse") == "data/pulse/checkpoint"
    assert Settings(log=LogSettings(url="s3://bucket/log")).log_url("pulse") == "s3://bucket/log"


def test_the_drivers_metrics_need_a_port_of_their_own() -> None:
    """It would be found after the takeover, when an instance has the port."""
    with pytest.raises(SettingsError, match=r"rest\.driver_metrics_port = 9001 .*rest\.port = 9000 and instances = 2"):
        Settings(instances=2, rest=RestSettings(port=9000, driver_metrics_port=9001))
    Settings(instances=2, rest=RestSettings(port=9000, driver_metrics_port=9002))
    Settings(instances=2, rest=RestSettings(port=0, driver_metrics_port=9002))
    Settings(instances=2, rest=RestSettings(port=9000, driver_metrics_port=0))


def test_standbys_need_instances_of_their_own() -> None:
    with pytest.raises(SettingsError, match=r"standbys = 2 needs instances = 3 or more, and instances = 2"):
        Settings(instances=2, standbys=2)
    assert Settings(instances=3, standbys=2).standbys == 2


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("logs/a%20b", "{here}/logs/a%20b"),
        ("file:logs/a%20b", "{here}/logs/a b"),
        ("file:///logs", "/logs"),
        ("s3://bucket/log", "s3://bucket/log"),
        ("memory://log", "memory://log"),
    ],
)
def test_a_relative_address_of_the_log_is_made_absolute(
    url: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings(log=LogSettings(url=url)).absolute().log.url == absolute.format(here=tmp_path)


@pytest.mark.parametrize(
    ("checkpoint", "absolute"),
    [("check/points", "{here}/check/points"), ("/check", "/check"), ("hdfs://host/check", "hdfs://host/check")],
)
def test_a_relative_checkpoint_is_made_absolute(
    checkpoint: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings(spark=SparkSettings(checkpoint=checkpoint)).absolute().checkpoint("app")
    assert found == absolute.format(here=tmp_path)


@pytest.mark.parametrize(
    ("make", "name", "allowed"),
    [
        (lambda: Settings(partitions=0), "partitions = '0'", "from 1 to 65536"),
        (lambda: Settings(partitions="4"), "partitions = '4'", "a whole number"),  # type: ignore[arg-type]
        (lambda: Settings(partitions=True), "partitions = 'true'", "a whole number"),
        (lambda: Settings(on_new_checkpoint="maybe"), "on_new_checkpoint = 'maybe'", '"refuse" or "re'),  # type: ignore[arg-type]
        (lambda: RestSettings(port=70_000), "rest.port = '70000'", "from 0 to 65535"),
        (lambda: LogSettings(inline_bytes="1MiB"), "log.inline_bytes = '1MiB'", "from 0B to 256KiB"),
        (lambda: LogSettings(clean_interval="10ms"), "log.clean_interval = '10ms'", "at least 1s"),
        (lambda: BatchSettings(max_records=0), "batch.max_records = '0'", "at least 1, or not set"),
        (lambda: BatchSettings(max_ahead="soon"), "batch.max_ahead: 'soon'", "is not a duration"),
        (lambda: MemorySettings(limit="1KiB"), "memory.limit = '1KiB'", "at least 64MiB"),
        (lambda: LogSettings(options={"n": 3}), "log.options", "Quote the values"),  # type: ignore[dict-item]
        (lambda: Settings(log="s3://bucket"), "log = a str", "LogSettings"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_ones(make: Callable[[], object], name: str, allowed: str) -> None:
    message = refused(make)
    assert name in message
    assert allowed in message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Settings(partition=1), "Settings has no setting 'partition'. Did you mean 'partitions'?"),  # type: ignore[call-arg]
        (lambda: LogSettings(x=1), "LogSettings has no setting 'x'. There are url, options"),  # type: ignore[call-arg]
        (lambda: load({"partitions": 2}), "settings= is a dict. Give it hf.Settings(partitions=...)."),  # type: ignore[arg-type]
    ],
)
def test_settings_that_code_gets_wrong_are_refused(make: Callable[[], object], words: str) -> None:
    assert words in refused(make)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Settings(retry=RetrySettings(first="10s", longest="5s")), "retry.first = 10s"),
        (lambda: Settings(restore=RestoreSettings(batch_bytes="2GiB")), "memory.limit = 1GiB"),
        (lambda: Settings(spark=SparkSettings(config={"spark.master": "x"})), "Use the setting spark.master"),
        (
            lambda: Settings(
                spark=SparkSettings(config={"spark.sql.shuffle.orderIndependentChecksum.enabled": "false"})
            ),
            "count records twice",
        ),
        (lambda: SecuritySettings(token="x" * 16, token_file="x"), "security.token and security.token_file are both"),
        (lambda: SecuritySettings(tls_cert_file="x"), "security.tls_key_file and security.tls_ca_file must be set too"),
    ],
)
def test_values_that_contradict_each_other_are_refused(make: Callable[[], object], words: str) -> None:
    assert words in refused(make)


# --- sources ---------------------------------------------------------------------------------------------------------


def test_the_environment_wins_over_the_file_and_the_file_over_code(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('partitions = 6\n[batch]\ncommit_interval = "2s"\nmax_records = 10\n[log.options]\nregion = "x"\n')
    code = Settings(partitions=5, instances=2, batch=BatchSettings(max_ahead="2h"))

    loaded = load(code, file, {"HOLDFAST_PARTITIONS": "7", "HOLDFAST_BATCH__MAX_RECORDS": "", "PATH": "x"})

    assert loaded.settings == Settings(
        partitions=7,
        instances=2,
        batch=BatchSettings(commit_interval="2s", max_ahead="2h"),
        log=LogSettings(options={"region": "x"}),
    )
    assert loaded.origins["partitions"] == "HOLDFAST_PARTITIONS"
    assert loaded.origins["batch.commit_interval"] == str(file)
    assert loaded.origins["instances"] == "code"
    assert loaded.origins["batch.max_ahead"] == "code"
    assert loaded.origins["rest.port"] == "default"


def test_the_file_is_found_in_the_working_directory_or_by_its_variable(tmp_path: Path) -> None:
    Path("holdfast.toml").write_text("partitions = 6\n")
    (tmp_path / "other.toml").write_text("partitions = 7\n")
    assert load().settings.partitions == 6
    assert load(env={"HOLDFAST_CONFIG": str(tmp_path / "other.toml")}).settings.partitions == 7
    assert "absent.toml" in refused(lambda: load(file=Path("absent.toml")))


@pytest.mark.parametrize("name", all_settings())
def test_every_setting_can_be_set_by_its_variable(name: str) -> None:
    setting = all_settings()[name]
    maps = {"log.options": '{"a": "b"}', "spark.config": '{"a": "b"}', "returned_stores": '{"a": "continue"}'}
    text = maps.get(name) or setting.show(setting.default) or "3"
    together = [each for each in all_settings() if each.startswith(f"{name.partition('.')[0]}.tls_")]

    loaded = load(env={variable_of(each): text for each in (together if name in together else [name])})

    assert loaded.origins[name] == variable_of(name)
    shown = "******" if name in ("security.token", "rest.tokens") else text.strip('{}"').replace('": "', "=")
    assert {row[0]: row[1] for row in loaded.rows()}[name] == shown


def test_a_variable_can_set_one_entry_of_options() -> None:
    Path("holdfast.toml").write_text('[log.options]\nregion = "eu"\n[spark.config]\n"spark.ui.enabled" = "false"\n')
    environment = {
        "HOLDFAST_LOG__OPTIONS__AWS_ENDPOINT": "http://here",
        "HOLDFAST_SPARK__CONFIG__spark.executor.memory": "2g",
    }
    settings = load(env=environment).settings
    assert settings.log.options == {"region": "eu", "aws_endpoint": "http://here"}
    assert settings.spark.config == {"spark.ui.enabled": "false", "spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("HOLDFAST_PARTITION", "partitions"),
        ("HOLDFAST_BATCH__COMIT_INTERVAL", "batch.commit_interval"),
        ("HOLDFAST_COMMIT_INTERVAL", "batch.commit_interval"),
        ("HOLDFAST_LOG__COMMIT_INTERVAL", "batch.commit_interval"),
        ("HOLDFAST_SNAPSHOT__RATIO", "snapshots.ratio"),
        ("HOLDFAST_BATCH__URL", "Did you mean 'log.url'?"),
        ("HOLDFAST_XYZZY", "`holdfast config` lists all settings."),
        ("HOLDFAST_BATCH", "batch.commit_interval"),
        ("HOLDFAST_LOG__URL__X", "HOLDFAST_LOG__URL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_one(variable: str, nearest: str) -> None:
    message = refused(lambda: load(env={variable: "x"}))
    assert variable in message
    assert nearest in message


def test_the_log_has_a_short_variable_and_the_long_one_wins() -> None:
    env = {"HOLDFAST_LOG": "s3://bucket/game"}
    assert load(env=env).settings.log_url("game") == "s3://bucket/game"
    assert load(env={**env, "HOLDFAST_LOG__URL": "/mnt/game"}).settings.log_url("game") == "/mnt/game"


def test_an_unknown_name_in_the_file_is_refused_with_the_nearest_one() -> None:
    Path("holdfast.toml").write_text("[restore]\nparalel_tasks = 3\n")
    message = refused(load)
    assert "'restore.paralel_tasks' (in holdfast.toml)" in message
    assert "Did you mean 'restore.parallel_tasks'?" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitions = 'four'\n", "partitions = 'four' is not allowed. It must be a whole number"),
        ("partitions =\n", "holdfast.toml is not valid TOML"),
        ("[log]\nretention = 5\n", "log.retention: 5 is not a duration"),
        ("[retry]\nfirst = '30s'\n", "retry.first = 30s is longer"),
        ("log = 3\n", "It is a group of settings"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name(text: str, words: str) -> None:
    Path("holdfast.toml").write_text(text)
    message = refused(load)
    assert words in message
    assert "holdfast.toml" in message


@pytest.mark.parametrize(
    ("variable", "text"),
    [("HOLDFAST_PARTITIONS", "many"), ("HOLDFAST_LOG__FSYNC", "maybe"), ("HOLDFAST_REST__PORT", "-1")],
)
def test_an_invalid_variable_is_refused_with_its_name_and_value(variable: str, text: str) -> None:
    message = refused(lambda: load(env={variable: text}))
    assert variable in message
    assert text in message


def test_other_variables_are_ignored() -> None:
    others = {
        "HOLDFAST_FAULT": "commit.before=kill@3",
        "HOLDFAST_FAULT_DIR": "x",
        "HOLDFAST_VERSITYGW": "x",
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",  # set by Kubernetes for a service named holdfast
        "HOLDFAST_PORT_8080_TCP_ADDR": "10.0.0.1",
        "HOLDFAST_PORT": "tcp://10.0.0.1:8080",
    }
    assert load(env=others).settings == Settings()


# --- secrets ---------------------------------------------------------------------------------------------------------

SECRETS = {
    "aws_secret_access_key": "hush-1",
    "aws_access_key_id": "hush-2",
    "aws_session_token": "hush-3",
    "google_service_account_key": "hush-4",
    "azure_storage_sas_key": "hush-5",
    "account_password": "hush-6",
    "endpoint": "http://user:hush-7@host",
}


@pytest.mark.parametrize("url", ["s3://user:hush-8@bucket/log", "az://box/log?sig=hush-9"])
def test_secrets_are_never_shown(url: str) -> None:
    settings = Settings(
        log=LogSettings(url=url, options=SECRETS),
        spark=SparkSettings(config={"spark.hadoop.fs.s3a.secret.key": "hush-10"}),
    )
    loaded = load(settings)
    for shown in (repr(settings), str(settings), repr(settings.log), repr(loaded), str(loaded.rows())):
        assert "hush" not in shown
        assert "aws_secret_access_key" in shown


def test_a_token_is_never_shown_and_files_are(tmp_path: Path) -> None:
    security = SecuritySettings(token="hush", tls_cert_file="a.pem", tls_key_file="b.pem", tls_ca_file="c.pem")
    settings = Settings(security=security)
    for shown in (repr(security), repr(settings), str(load(settings).rows()), repr(load(settings))):
        assert "hush" not in shown and "b.pem" in shown and "******" in shown
    assert settings.absolute().security.tls_key_file == str(tmp_path / "b.pem")
    Path("holdfast.toml").write_text("[security]\ntoken = 5550123\n")
    assert "5550123" not in refused(load) and "security.token" in refused(load)
    both = {"HOLDFAST_SECURITY__TOKEN": "hush", "HOLDFAST_SECURITY__TOKEN_FILE": "x", "HOLDFAST_CONFIG": ""}
    assert "hush" not in refused(lambda: load(env=both))


def test_a_refused_value_of_options_is_not_shown() -> None:
    assert "hush" not in refused(lambda: load(env={"HOLDFAST_LOG__OPTIONS": '{"token": "hush"'}))
    assert "hush" not in refused(lambda: RedactedOptions({"token": b"hush"}))  # type: ignore[dict-item]


def test_options_that_are_not_secret_are_shown() -> None:
    plain = {"region": "eu", "allow_http": "true", "skip_signature": "true", "virtual_hosted_style_request": "false"}
    assert RedactedOptions(plain).shown() == plain
