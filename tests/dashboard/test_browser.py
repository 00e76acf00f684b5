"""The dashboard in a real Chromium: pages, keys, markup in names, narrow windows, both colour schemes, recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.dashboard.conftest import Dashboard, Window, behind
from tests.support.waiting import until

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.client.admin.values import NewTopic

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from tools.dashboard_picture import DESKTOP, PHONE

Serve = Callable[..., Dashboard]
MARKUP = "<img src=x onerror=document.title='run'>"
WIDER = "document.documentElement.scrollWidth > window.innerWidth"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        behind(broker.bootstrap_servers, "orders", "payments")
        with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
            admin.alter_consumer_group_offsets(MARKUP, {TopicPartition("orders", 0): 10}).all()
            producer.send("orders", MARKUP.encode(), key=b"\xff\xfe", partition=1)
            producer.flush()
        yield broker


def test_pages_work_by_keys_and_show_markup_as_text(chromium: Any, serve: Serve, broker: Broker) -> None:
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: set(dashboard.groups()) == {"payments", MARKUP}, "the groups are read")
    window = Window(chromium, dashboard, viewport=DESKTOP)
    page = window.page
    page.wait_for_selector("text=payments")
    page.wait_for_selector("tr:has-text('payments') >> text=STOP")
    assert MARKUP in window.text("main")

    page.keyboard.press("/")
    page.keyboard.type("paym")
    page.wait_for_selector("text='payments'")
    until(lambda: page.locator("tbody tr").count() == 1, "the filter leaves one group")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('payments')")
    page.wait_for_selector("h2:has-text('Timeline')")
    assert "records wait for it" in window.text("main")
    assert page.locator("figure svg").count() >= 2

    page.keyboard.press("t")
    page.wait_for_selector("a[data-key=orders]")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Records')")
    page.click("text=Look at records")
    page.wait_for_selector("article")
    assert page.locator("article").count() == 11
    assert MARKUP in window.text("main") and "base 64" in window.text("main")

    page.keyboard.press("u")
    page.wait_for_selector("h1:has-text('Topics')")
    page.keyboard.press("r")
    page.wait_for_selector("text=no regions")
    page.goto(f"http://{dashboard.server.address}/#/group/{MARKUP}")
    until(lambda: MARKUP in window.text("h1"), "the group with markup in its name is shown")
    assert MARKUP in page.title() and page.locator("main img").count() == 0
    page.goto(f"http://{dashboard.server.address}/#/group/nobody")
    page.wait_for_selector("text=there is no group")
    assert [said for said in window.said if "404" not in said] == [], "neither an error nor a refusal by the policy"
    window.close()


def test_record_of_a_time_beyond_the_calendar_is_shown_and_an_unknown_page_too(
    chromium: Any, serve: Serve, broker: Broker
) -> None:
    """A date of JavaScript ends at 8.64e15 ms, and the timestamp of a record at 9.2e18 ms."""
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        far = str(2**63 - 1)
        admin.create_topics([NewTopic("far", 1, 1, configs={"message.timestamp.after.max.ms": far})]).all()
        producer.send("far", b"near", partition=0)
        producer.send("far", b"beyond", partition=0, timestamp_ms=9 * 10**15)
        producer.flush()
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: "payments" in dashboard.groups(), "the groups are read")
    window = Window(chromium, dashboard)
    for name in ("constructor", "toString", "__proto__", "nothing"):
        window.page.goto(f"http://{dashboard.server.address}/#/{name}")
        window.page.reload()
        window.page.wait_for_selector("h1:has-text('Groups')")
        window.page.wait_for_selector("text=payments")
    window.page.goto(f"http://{dashboard.server.address}/#/topic/far")
    window.page.click("text=Look at records")
    until(lambda: window.page.locator("article").count() == 2, "both records are shown")
    assert "9000000000000000 ms" in window.text("main") and "near" in window.text("main")
    assert window.said == []
    window.close()


def test_cluster_that_is_away_is_said_and_the_page_recovers_by_itself(
    chromium: Any, serve: Serve, broker: Broker
) -> None:
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: "payments" in dashboard.groups(), "the groups are read")
    window = Window(chromium, dashboard)
    window.page.wait_for_selector("text=payments")
    assert window.text("#banner") == ""
    broker.kill()
    window.page.wait_for_selector("#banner :text('The cluster could not be read')", timeout=60_000)
    assert "payments" in window.text("main"), "the last read stays"
    broker.restart()
    window.page.wait_for_selector("#banner :text('could not be read')", state="detached", timeout=60_000)
    dashboard.server.close()
    window.page.wait_for_selector("#banner :text('kohort does not answer')", timeout=60_000)
    window.close()


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_fits_the_window_in_both_schemes(
    chromium: Any, serve: Serve, broker: Broker, scheme: str, dark: bool, size: dict[str, int]
) -> None:
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: "payments" in dashboard.groups(), "the groups are read")
    window = Window(chromium, dashboard, viewport=size, color_scheme=scheme)
    for place, shown in (
        ("#/groups", "text=payments"), ("#/group/payments", "figure"), ("#/topics", "text=orders"),
        ("#/topic/orders", "text=In sync" if size is DESKTOP else "text=Look at records"),
    ):  # fmt: skip
        window.page.goto(f"http://{dashboard.server.address}/{place}")
        window.page.wait_for_selector(shown)
        assert not window.page.evaluate(WIDER), place
    colour = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(colour.removeprefix("rgb(").split(",")[0])
    assert (red < 100) is dark
    window.close()
