"""Requests to a dashboard that is closing: each is refused, without a traceback."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from kohort.dashboard.cluster_lookups import ClusterLookups
from kohort.dashboard.guard import OPEN
from kohort.dashboard.observer import ClusterObserver
from kohort.dashboard.server import DashboardRoutes

REQUEST = Request({"type": "http", "method": "GET", "path": "/api/group", "headers": [], "query_string": b""})


@pytest.fixture
def routes() -> DashboardRoutes:
    lookups = cast(ClusterLookups, SimpleNamespace(admin=None))
    return DashboardRoutes(cast(ClusterObserver, None), lookups, OPEN)


async def answer_from_thread(routes: DashboardRoutes, work: Any) -> Response:
    return await routes._in_thread(routes._memory, work)(REQUEST)


def test_request_after_the_close_is_refused(routes: DashboardRoutes) -> None:
    routes.close()
    assert asyncio.run(answer_from_thread(routes, lambda request: {})).status_code == 503


def test_request_that_waits_for_a_thread_at_the_close_is_refused(routes: DashboardRoutes) -> None:
    begun, released = threading.Event(), threading.Event()

    def wait_for_release(request: Request) -> dict[str, Any]:
        begun.set()
        released.wait(60)
        return {}

    async def close_meanwhile() -> tuple[int, int]:
        first = asyncio.create_task(answer_from_thread(routes, wait_for_release))
        await asyncio.to_thread(begun.wait, 60)
        second = asyncio.create_task(answer_from_thread(routes, lambda request: {}))
        await asyncio.sleep(0)
        routes.close()
        try:
            refused = await second
        finally:
            released.set()
        return (await first).status_code, refused.status_code

    assert asyncio.run(close_meanwhile()) == (200, 503)


def test_request_that_is_cancelled_while_the_dashboard_closes_stays_cancelled(routes: DashboardRoutes) -> None:
    released = threading.Event()

    async def cancel_request() -> None:
        waiting = asyncio.create_task(answer_from_thread(routes, lambda request: released.wait(60)))
        await asyncio.sleep(0)
        routes.is_closing = True
        waiting.cancel()
        try:
            await waiting
        finally:
            released.set()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_request())
