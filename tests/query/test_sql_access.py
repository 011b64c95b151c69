"""Statements of tokens: which stores are tables for whom, and that nothing shows the others."""

from collections.abc import Iterator

import httpx2
import pytest

from holdfast import metrics
from holdfast.query.columns import ColumnReader
from holdfast.query.freshness import ANY
from holdfast.query.grants import READ_ALL
from holdfast.query.service import RestService
from holdfast.query.sql import StoreTables
from holdfast.settings.rest import RestSettings
from holdfast.sql.errors import SqlRefused
from holdfast.sql.messages import StoreScan
from tests.instance.processes import until
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, SCORES
from tests.query.instances import serving
from tests.query.test_access import ALL, OPERATOR, SCORES_ONLY, TOKENS, bearer, refused


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestService]:
    settings = RestSettings(port=0, tokens=TOKENS)
    with serving(tmp_path_factory.mktemp("access"), APP, settings) as (driver, instance, service):
        driver.commit(SCORES, {("alice",): (12, None, None, None, 1)})
        driver.commit(LEVELS, {("alice", 1): 1})
        instance.committed(driver.commit(NUMBERS, {(n,): n for n in range(5)}))
        until(lambda: all(each.replica.published.version == 3 for each in instance.hosted()), "version 3")
        yield service


@pytest.fixture(scope="module")
def rest(service: RestService) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=service.url, timeout=60) as client:
        yield client


def statement(rest: httpx2.Client, sql: str, token: str = SCORES_ONLY) -> httpx2.Response:
    return rest.post("/v1/sql", json={"sql": sql}, headers=bearer(token))


@pytest.mark.parametrize(
    ("sql", "needs"),
    [
        ("SELECT count(*) FROM numbers", ["read:numbers"]),
        ("SELECT count(*) FROM scores, levels, numbers", ["read:levels", "read:numbers"]),
        ("SELECT (SELECT max(value) FROM main.numbers) FROM scores", ["read:numbers"]),
        ("SELECT * FROM query('SELECT * FROM numbers')", ["read:numbers"]),
        ("FROM query_table('numbers')", ["read:numbers"]),
        ("DESCRIBE numbers", ["read:numbers"]),
        ("SELECT * FROM nothing", ["read:nothing"]),
    ],
)
def test_a_statement_reads_the_stores_of_its_token(rest: httpx2.Client, sql: str, needs: list[str]) -> None:
    assert statement(rest, "SELECT count(*) FROM scores").json()["rows"] == [[1]]
    refusals = metrics.value("holdfast_rest_requests_refused_total", error="out_of_scope")
    answer = statement(rest, sql)
    assert refused(answer) == (403, "out_of_scope", 'Bearer error="insufficient_scope"')
    assert answer.json()["needs"] == needs
    assert metrics.value("holdfast_rest_requests_refused_total", error="out_of_scope") == refusals + 1
    assert statement(rest, sql, ALL).status_code == (400 if "nothing" in sql else 200)


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SELECT * FROM duckdb_tables()",
        "SELECT * FROM duckdb_views()",
        "SELECT * FROM duckdb_columns()",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM information_schema.columns",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM duckdb_dependencies()",
        "SELECT nope FROM scores",
        "SELECT * FROM query('SELECT * FROM num' || 'bers')",
        "PIVOT numbrs ON key",
        "WITH numbers AS (SELECT 1 AS one) SELECT one FROM numbers",
        "SELECT 'numbers' = player FROM scores",
    ],
)
def test_a_statement_shows_nothing_of_other_stores(rest: httpx2.Client, sql: str) -> None:
    """Also beside statements of others, which the same process has run before."""
    assert statement(rest, "SELECT count(*) FROM numbers, levels", ALL).status_code == 200
    answer = statement(rest, sql)
    assert answer.status_code in (200, 400), answer.text
    assert "levels" not in answer.text and '"numbers"' not in answer.text


def test_a_worker_that_asks_for_another_store_gets_nothing(service: RestService) -> None:
    """Whatever a statement finds in DuckDB: the instance refuses the scan."""
    columns = ColumnReader(service.reader)
    tables = StoreTables(columns, ANY, 10, lambda stores: [each for each in stores if each == "scores"])
    assert tables.schemas().keys() == {"scores"}
    with tables.open(["scores"]) as opened:
        assert sum(batch.num_rows for batch in opened.rows(StoreScan("scores", ("player",)))) == 1
        with pytest.raises(SqlRefused):
            next(opened.rows(StoreScan("numbers", ("key",))))


def test_a_token_without_a_store_has_no_statements(rest: httpx2.Client) -> None:
    assert statement(rest, "SELECT 1", OPERATOR).json()["needs"] == [READ_ALL]
    assert statement(rest, "SELECT 1").json()["rows"] == [[1]]
