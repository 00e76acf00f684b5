"""Take docs/dashboard.png, a picture of `kohort dashboard` over a small cluster, by Chromium.

`python tools/dashboard_picture.py FOLDER` takes each page instead, in desktop and phone width, light and dark.
Needs the package playwright, and Debian's package chromium.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.dashboard.cluster_lookups import ClusterLookups
from kohort.dashboard.observer import ClusterObserver
from kohort.dashboard.server import DashboardServer
from kohort.lag import LagReader

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "dashboard.png"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PAGES = {"groups": "#/groups", "group": "#/group/payments", "topic": "#/topic/orders", "topics": "#/topics"}
ROUNDS = 60
"""The rounds of reading and writing before the picture: a sparkline's length."""
CHROMIUM_OPTIONS = ("--no-sandbox", "--disable-gpu")
"""Chromium's own sandbox can't run as root, as in most containers. It sees the dashboard's pages alone."""


def chromium_path() -> str | None:
    """Return where Debian's Chromium is; None: it is not installed."""
    return shutil.which("chromium")


@contextmanager
def busy_cluster(rounds: int) -> Iterator[tuple[str, ClusterObserver]]:
    """Run a broker whose groups are in several states, and an observer that has read it `rounds` times."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(config={"group.initial.rebalance.delay.ms": 0}))
        servers = broker.bootstrap_servers
        admin = stack.enter_context(Admin(servers))
        producer = stack.enter_context(Producer(servers))
        admin.create_topics([NewTopic("orders", 6, 1), NewTopic("clicks", 3, 1), NewTopic("audit", 1, 1)]).all()
        _fill(producer, 40)
        for name, topic, partitions in (
            ("billing", "audit", 1),
            ("search-index", "clicks", 3),
            ("archive", "orders", 6),
        ):
            at = {TopicPartition(topic, number): 40 if name == "billing" else 5 for number in range(partitions)}
            admin.alter_consumer_group_offsets(name, at).all()
        reader = LagReader(servers)
        reader.window_ms = 2_000
        observer = stack.enter_context(ClusterObserver(servers, reader, 100))
        traffic = stack.enter_context(_Traffic(servers, producer, rounds))
        traffic.has_begun.wait()
        yield servers, observer


class _Traffic:
    """A thread that writes, and reads as members of the group `payments`, until its block ends.

    Attributes:
        has_begun: Set after `rounds` rounds.
    """

    def __init__(self, servers: str, producer: Producer, rounds: int) -> None:
        self._servers, self._producer, self._rounds = servers, producer, rounds
        self.has_begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            members = [stack.enter_context(_member(self._servers, "payments", number)) for number in range(2)]
            number = 0
            while not self._ended.is_set():
                if number == self._rounds // 3:
                    members.append(stack.enter_context(_member(self._servers, "payments", 2)))
                _fill(self._producer, 3 + number % 5)
                for member in members:
                    member.poll(timeout_ms=30, max_records=12)
                    if number % 3 == 0:
                        member.commit()
                time.sleep(0.05)
                number += 1
                if number >= self._rounds:
                    self.has_begun.set()


def _member(servers: str, group: str, number: int) -> Consumer:
    member = Consumer(
        servers, group_id=group, client_id=f"{group}-{number}", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    member.subscribe(["orders"])
    return member


def _fill(producer: Producer, count: int) -> None:
    via = [("via", b"web")]
    for number in range(count):
        value = b'{"order": %d, "amount": "12.50", "items": ["pen", "paper"]}' % number
        for topic, partitions in (("orders", 6), ("clicks", 3), ("audit", 1)):
            if topic != "audit" or count == 40:
                for partition in range(partitions):
                    producer.send(topic, value, key=b"customer-%d" % number, partition=partition, headers=via)
    producer.flush()


def take_pictures(address: str, wanted: dict[Path, tuple[str, dict[str, int], str]]) -> None:
    """Take pictures: for each file a page's address, the window's size, and `light` or `dark`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_OPTIONS))
        for file, (page_path, size, scheme) in wanted.items():
            settings: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
            page = browser.new_context(**settings).new_page()
            page.goto(f"http://{address}/{page_path}")
            page.wait_for_selector("main table")
            if "topic/" in page_path:
                page.click("button[type=submit]")
                page.wait_for_selector("article")
            page.screenshot(path=str(file))
            page.context.close()
        browser.close()


def main() -> int:
    """Take the picture of the documentation, or all into a folder."""
    wanted = {PICTURE: (PAGES["group"], DESKTOP, "light")}
    for folder in map(Path, sys.argv[1:2]):
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {
            folder / f"{name}-{width}-{scheme}.png": (path, size, scheme)
            for name, path in PAGES.items()
            for width, size in (("desktop", DESKTOP), ("phone", PHONE))
            for scheme in ("light", "dark")
        }
    with busy_cluster(ROUNDS) as (servers, observer):
        with DashboardServer("127.0.0.1", 0, observer, ClusterLookups(servers, {}, {})) as server:
            take_pictures(server.address, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
