"""What a client must be allowed: a row for every API, asked before its handler, by the request's principal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kohort.broker.authorization import NEEDS, Need, Resource
from kohort.broker.net.dispatch import Dispatcher
from kohort.broker.net.request import Request
from kohort.broker.net.session import ANYONE, Principal
from kohort.broker.routes import GROUP_ROUTES, ROUTES, unknown_api_versions
from kohort.broker.run import RunningBroker
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from kohort.wire.cluster import ApiVersionsRequest
from kohort.wire.groups import HeartbeatRequest, ListGroupsRequest
from kohort.wire.security import CreateDelegationTokenRequest
from tests.broker.raw import RawClient


def test_every_api_has_a_row_and_every_row_an_api() -> None:
    assert {route.name for route in ROUTES.values()} | {"DescribeCoordinators"} == NEEDS.keys()
    assert all(route.needs == NEEDS[route.name] for route in ROUTES.values())
    assert all(GROUP_ROUTES[key].needs == ROUTES[key].needs for key in GROUP_ROUTES)


def test_only_what_comes_before_a_login_or_is_ones_own_needs_nothing() -> None:
    free = {name for name, needs in NEEDS.items() if not needs}
    assert free == {
        "ApiVersions",
        "DescribeCluster",
        "SaslHandshake",
        "SaslAuthenticate",
        "RenewDelegationToken",
        "ExpireDelegationToken",
    }


def test_what_is_written_needs_more_than_to_describe() -> None:
    """No API that changes something is open to who may only look."""
    looks = (
        "ConsumerGroupDescribe",
        "Describe",
        "List",
        "Find",
        "ApiVersions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "Sasl",
    )
    reading = {AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE_TOKENS}
    own = {"RenewDelegationToken", "ExpireDelegationToken"}
    for name, needs in NEEDS.items():
        if not name.startswith(looks) and name not in own:
            assert {need.operation for need in needs} - reading, name


def test_each_resource_has_its_error() -> None:
    assert {each.refusal for each in Resource} <= {*ErrorCode}
    assert Resource.GROUP.refusal is ErrorCode.GROUP_AUTHORIZATION_FAILED


class Gatekeeper:
    """Nobody may read groups; it notes who asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Principal]] = []

    def __call__(self, request: Request[Any], needs: tuple[Need, ...]) -> ErrorCode:
        self.asked.append((request.name.split()[0], request.principal))
        refused = Need(AclOperation.READ, Resource.GROUP)
        return refused.resource.refusal if refused in needs else ErrorCode.NONE


def test_a_request_that_is_not_allowed_reaches_no_handler(tmp_path: Path) -> None:
    keeper = Gatekeeper()

    async def run() -> tuple[int, int, str]:
        loop = asyncio.get_running_loop()
        broker = RunningBroker(loop, tmp_path, "127.0.0.1:0", {})
        broker.serving.server.on_frame = Dispatcher(broker.node, ROUTES, unknown_api_versions, keeper).dispatch
        broker.listen()
        try:
            return await asyncio.to_thread(ask, broker.address)
        finally:
            await broker.close()

    def ask(address: str) -> tuple[int, int, str]:
        with RawClient(address) as client:
            client.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
            beat = client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
            token = client.ask(CreateDelegationTokenRequest())
            return beat.error_code, client.ask(ListGroupsRequest()).error_code, token.principal_name

    beat, listed, name = asyncio.run(run())
    assert beat == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert listed == ErrorCode.NONE
    assert name == ANYONE.name
    assert keeper.asked == [
        (name, ANYONE) for name in ("ApiVersions", "Heartbeat", "CreateDelegationToken", "ListGroups")
    ]
