"""The examples that are apps, in a test driver, over the data that the programs read.

`tests/test_programs.py` runs them as programs on Spark. Those with conditions in SQL need a Spark session here too.
"""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from examples import fraud, leaderboard, lru_store, mail_delivery, patient_monitoring, tombstones, user_sessions
from holdfast.testing import TestDriver, records
from tests.test_docs import ROOT


def data(name: str) -> list[dict[str, Any]]:
    """The records of a folder in examples/data."""
    files = sorted((ROOT / "examples/data" / name).glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_leaderboard_follows_scores_and_the_names_of_its_tables() -> None:
    app = hf.App("leaderboard")
    sources = [records(columns) for columns in (leaderboard.SCORES, leaderboard.PLAYERS, leaderboard.PRODUCTS)]
    leaderboard.build(app, *sources)
    driver = TestDriver(app)
    driver.pipe_all({name: data(name) for name in ("scores", "players", "products")})
    assert driver.store("top3").get("Chess").value == [rated("alice", 70, 2), rated("bob", 45, 1), rated("dora", 40, 2)]
    assert driver.store("top3").get("Go").value == [rated("bob", 60, 1), rated("emil", 20, 1)]
    assert driver.store("high-scores").get(("Chess", "dora")) == {"points": 40, "games": 2}
    scored = {"player": "p-3", "product": "g-1", "points": 50, "at": "2025-06-01T19:00:00Z"}
    driver.pipe_all({"products": [{"id": "g-1", "title": "Chess"}], "scores": [scored]})
    driver.crash()
    assert driver.store("top3").get("Chess").value == [rated("alice", 70, 2), rated("cleo", 50, 2), rated("bob", 45, 1)]


def rated(name: str, points: int, games: int) -> dict[str, Any]:
    return {"name": name, "points": points, "games": games}


def test_a_user_session_ends_after_half_an_hour_and_a_late_click_joins_two() -> None:
    app = hf.App("sessions")
    user_sessions.build(app, records(user_sessions.CLICKS))
    driver = TestDriver(app)
    driver.pipe("clicks", data("clicks"))
    assert sessions_of(driver, "ann") == [(12_00, 12_50, 3, "home", "checkout"), (18_00, 18_00, 1, "home", "home")]
    assert sessions_of(driver, "bob") == [(12_05, 12_05, 1, "hats", "hats"), (12_36, 12_36, 1, "home", "home")]
    driver.pipe("clicks", [click("cleo", "17:50"), click("cleo", "18:22")])
    assert len(sessions_of(driver, "cleo")) == 2
    driver.output("user-sessions")
    driver.pipe("clicks", [click("cleo", "18:05")])
    assert sessions_of(driver, "cleo") == [(17_50, 18_22, 3, "home", "home")]
    assert [row["_deleted"] for row in driver.output("user-sessions")].count(True) == 2, "sinks delete the two"


def click(user: str, time: str) -> dict[str, str]:
    return {"user": user, "page": "home", "at": f"2025-06-01T{time}:00Z"}


def sessions_of(driver: TestDriver, user: str) -> list[tuple[Any, ...]]:
    """Start and end as hours and minutes, and the results."""
    found = driver.store("user-sessions").fetch(user)
    return [(clock(each.start), clock(each.end), *row.values()) for each, row in found]


def clock(time: int) -> int:
    minutes = time // 60_000 % 1_440
    return minutes // 60 * 100 + minutes % 60


def test_a_store_of_fixed_size_keeps_the_pages_used_last() -> None:
    app = hf.App("lru", settings=hf.Settings(partitions=1))
    lru_store.build(app, records(lru_store.VISITS), hf.memory(), hf.memory())
    driver = TestDriver(app)
    for batch in lru_store.BATCHES:
        driver.pipe("visits", batch)
    assert {key: row["visits"] for key, row in driver.store("recent-pages").items()} == {
        "home": 2,
        "shoes": 1,
        "socks": 1,
    }
    assert sorted(key for key, _ in driver.store("page-cache").items()) == ["home", "shoes", "socks"], (
        "hats was evicted"
    )
    assert [row["page"] for row in driver.output("recent-pages") if row["_deleted"]] == ["hats"]
    assert [row["page"] for row in driver.output("render")] == ["home", "hats", "shoes", "socks"], "home was a hit"


def test_an_article_without_stock_is_deleted_and_sinks_get_a_tombstone() -> None:
    app = hf.App("stock")
    tombstones.build(app, records(tombstones.CHANGES))
    driver = TestDriver(app)
    driver.pipe("changes", tombstones.MORNING)
    assert driver.store("stock").get("socks").value == 1
    driver.output("stock")
    driver.pipe("changes", tombstones.EVENING)
    assert driver.store("stock").get("socks") is None
    sent = {row["article"]: (row["value"], row["_deleted"]) for row in driver.output("stock")}
    assert sent == {"socks": (None, True), "shoes": ("4", False)}


def test_mail_is_dropped_when_it_is_delivered_and_a_customer_without_mail_too() -> None:
    app = hf.App("mail")
    mail_delivery.build(app, records(mail_delivery.MAIL))
    driver = TestDriver(app)
    posted, delivered = mail_delivery.DAYS
    driver.pipe("mail", posted)
    assert driver.store("undelivered").get("ann").value == {"m-1": "invoice", "m-3": "parcel"}
    driver.crash()
    driver.pipe("mail", delivered)
    assert [(key, each.value) for key, each in driver.store("undelivered").items()] == [("ann", {"m-3": "parcel"})]


@pytest.mark.spark
def test_an_account_with_a_burst_of_payments_is_suspect_wherever_the_burst_lies(spark: SparkSession) -> None:
    app = hf.App("fraud")
    fraud.build(app, records(fraud.PAYMENTS))
    driver = TestDriver(app)
    driver.pipe("payments", data("payments"))
    assert driver.output("suspects") == [{"account": "a-2", "payments": 4, "cents": 4 * 4900}]
    driver.pipe("payments", [{"account": "a-1", "cents": 5, "at": f"2025-06-01T09:{m}:00Z"} for m in (24, 30, 33)])
    assert driver.output("suspects") == [{"account": "a-1", "payments": 4, "cents": 715}], "from 9:23 to 9:33"


@pytest.mark.spark
def test_a_patient_above_both_limits_is_an_alert(spark: SparkSession) -> None:
    app = hf.App("patients")
    patient_monitoring.build(app, records(patient_monitoring.PULSE), records(patient_monitoring.TEMPERATURE))
    driver = TestDriver(app)
    driver.pipe_all({"pulse": data("pulse"), "temperature": data("temperature")})
    driver.advance(stream="2m")
    alerts = sorted((row["patient"], row["beats"], row["celsius"]) for row in driver.output("alerts"))
    assert alerts == [("ann", 110, 38.8), ("ann", 110, 39.1)], "37.9 °C is not too high, and bob's pulse isn't"
