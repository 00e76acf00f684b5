"""What a coordinator over Kafka serves: groups, where things are, and what it says of itself."""

from __future__ import annotations

from kohort.broker.net.dispatch import Route, route_table
from kohort.broker.routes import GROUP_ROUTES
from kohort.cluster import status
from kohort.cluster.host import CoordinatorHost

COORDINATOR_ROUTES: dict[int, Route[CoordinatorHost]] = {**GROUP_ROUTES, **route_table([status.HANDLERS])}
