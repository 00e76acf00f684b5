"""A dashboard in this process, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from kohort import Admin, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.lag import LagReader
from kohort.lag.history_file import HistoryWriter
from kohort.lag.reading import REBALANCES_ASKED


class Dashboard:
    """A dashboard that reads its cluster every 100 ms, and a browser's part of talking to it."""

    def __init__(
        self,
        stack: ExitStack,
        servers: str,
        history: Path | None = None,
        access: Any = None,
        limit_ms: int = 5_000,
        **settings: Any,
    ) -> None:
        pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")
        from kohort.dashboard.cluster_lookups import ClusterLookups
        from kohort.dashboard.guard import OPEN
        from kohort.dashboard.observer import ClusterObserver
        from kohort.dashboard.server import DashboardServer

        reader = LagReader(servers, **settings)
        reader.window_ms = 500
        reader.rebalances = REBALANCES_ASKED
        file = None if history is None else stack.enter_context(HistoryWriter(history))
        observer = stack.enter_context(ClusterObserver(servers, reader, 100, file))
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        lookups = ClusterLookups(servers, dotted, dotted, limit_ms)
        self.server = stack.enter_context(DashboardServer("127.0.0.1", 0, observer, lookups, access or OPEN))

    def send(
        self, path: str, method: str = "GET", body: bytes | None = None, /, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        host, port = self.server.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request(
                method, path, body, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def post(self, answer: str, body: object, /, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and answer of a request with a body, as this dashboard's own page makes it."""
        own = {"Origin": f"http://{self.server.address}", "Content-Type": "application/json", **headers}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, found, text = self.send(f"/api/{answer}", "POST", data, **own)
        return status, found, json.loads(text)

    def get(self, answer: str, /, **query: object) -> Any:
        """The answer to a request that succeeds."""
        status, found = self.ask(answer, **query)
        assert status == 200, found
        return found

    def ask(self, answer: str, /, **query: object) -> tuple[int, Any]:
        """Status and answer."""
        status, _, body = self.send(f"/api/{answer}?{urlencode(query)}")
        return status, json.loads(body)

    def groups(self) -> dict[str, Any]:
        """The rows of the overview by group."""
        return {row["group"]: row for row in self.get("overview")["overview"]["groups"]}


@pytest.fixture
def serve() -> Iterator[Callable[..., Dashboard]]:
    """Makes dashboards, which end with the test."""
    with ExitStack() as stack:
        yield lambda servers, history=None, access=None, **settings: Dashboard(
            stack, servers, history, access, **settings
        )


@pytest.fixture
def name() -> str:
    """Of a topic and a group, new for each test."""
    return f"d-{uuid.uuid4().hex[:8]}"


def behind(servers: str, topic: str, group: str) -> None:
    """Makes a group that has read three of ten records in a partition, and all in the other."""
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics([NewTopic(topic, 2, 1)]).all()
        for number in range(10):
            producer.send(
                topic, b'{"number": %d}' % number, key=b"k%d" % number, partition=0, headers=[("via", b"web")]
            )
        producer.flush()
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0}).all()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")
    from tools.dashboard_picture import CHROMIUM_OPTIONS, chromium_path

    if chromium_path() is None:
        pytest.skip("Debian's package chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_OPTIONS))
        yield browser
        browser.close()


class Window:
    """A page in Chromium, and what its console said."""

    def __init__(self, chromium: Any, dashboard: Dashboard, **settings: Any) -> None:
        self.said: list[str] = []
        self.page = chromium.new_context(**settings).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(f"http://{dashboard.server.address}/")

    def close(self) -> None:
        self.page.context.close()

    def text(self, selector: str) -> str:
        text: str = self.page.inner_text(selector)
        return text
