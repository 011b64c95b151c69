"""The endpoints of the four-store example, on real Spark with two instances."""

from pathlib import Path

import httpx2
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from examples import conversations
from tests.test_docs import ROOT

TOKENS = "support support-0123456789abcdef read:user-sessions,read:metrics\naudit audit-0123456789abcdef read:audit"


def millis(minute: int) -> int:
    return int(conversations.START.timestamp() * 1000) + minute * 60_000


@pytest.mark.spark
def test_the_endpoints_of_the_four_store_example(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")  # as for a program in that folder
    conversations.write_messages(tmp_path / "messages")
    rest = hf.RestSettings(port=0, tokens=TOKENS)
    app = conversations.build(spark, tmp_path, instances=2, partitions=4, rest=rest)
    assert "endpoint GET /api/state/audit/{id}: conversation_endpoints:audited reads audit" in app.describe()
    with app, httpx2.Client(timeout=30) as client:
        app.process_all_available()
        version = str(app.version)
        for address in app.addresses:  # each asks the other one for half of the partitions

            def get(path: str, who: str = "support") -> httpx2.Response:
                headers = {"Authorization": f"Bearer {who}-0123456789abcdef"}
                return client.get(f"{address}/api/state{path}", headers=headers)  # noqa: B023  called in this turn

            session = get("/users/ann/session")
            assert session.json() == {"started": millis(500), "last": millis(500), "messages": 1}
            assert (session.headers["holdfast-version"], session.headers["holdfast-consistent"]) == (version, "true")
            last = [{"start": millis(500), "messages": 1}]
            assert get("/metrics/ann/windows").json() == get("/metrics/ann/windows?hours=1").json() == last
            assert get("/metrics/ann/windows?hours=9").json() == [
                {"start": millis(0), "messages": 2},
                {"start": millis(50), "messages": 1},
                *last,
            ]
            assert get("/metrics/nobody/windows").json() == []
            assert get("/metrics/ann/windows?hours=all").status_code == 400
            assert get("/users/nobody/session").status_code == 404
            assert get("/audit/m-3").status_code == 403
            found = get("/audit/m-3", "audit")
            assert found.json() == {"user": "bob", "at": millis(4), "characters": len("this is m-3")}
            assert get("/audit/m-99", "audit").status_code == 404
    again = conversations.build(spark, tmp_path, instances=2, partitions=4, rest=rest)
    assert str(again.plan()).endswith("A start changes nothing.")
    again._topology.endpoints.pop()
    assert again.plan().changes == ("endpoint /api/state/audit/{id} is removed",)
