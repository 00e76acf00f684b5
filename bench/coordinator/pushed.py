"""Members of the push protocol, without data: they register, then answer the coordinator's requests.

They follow the protocol's text and no more: no lease unless the plan wants it, no leave of its own. A member that
leaves sends Kafka's LeaveGroup on another connection, as kohort's clients do, since the text has no leave.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from bench.coordinator.members import LEAVE, Member
from bench.coordinator.wire import Link
from kohort.errors import ErrorCode
from kohort.io.processes import ownership_ms
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.groups import LeaveGroupRequest
from kohort.wire.push import (
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    ErrorResponse,
    PushType,
    RegisterConsumerRequest,
    decode_coordinator_request,
    encode_ping_response,
    with_length_prefix,
)

_PING = PushType.PING.to_bytes(2, "big")
_NO_RETRY = bytes(2)
_DONE, _REFUSED = (
    with_length_prefix(ErrorResponse(0).encode_frame()),
    with_length_prefix(ErrorResponse(-1).encode_frame()),
)
"""RestartFetcher, the answer to Stop and to Start; the latter is the text's IllegalStateException."""


class PushLink(Link):
    """A connection that turns round: what comes when nothing is awaited is asked of the client.

    Attributes:
        asked: gives the answer to a frame.
    """

    asked: Callable[[bytes], bytes]

    def take(self, frame: bytes) -> None:
        if self._waiting:
            super().take(frame)
        elif self._transport is not None:
            self._transport.write(self.asked(frame))


class PushMember(Member):
    """RegisterConsumer with auto commit, then answers to Ping, Stop and Start; its positions stay where they were."""

    _consulted = 0
    _said = _owned_until = 0.0
    _ending: asyncio.TimerHandle | None = None

    async def _open(self) -> Link:
        if self._link is None:
            address = await self._coordinator() if self.plan.servers else self.plan.address()
            link = await PushLink.open(*address, self.name)
            link.asked = self._asked
            if self.plan.processes:
                said = ApiVersionsRequest(
                    client_software_name="kohort", client_software_version="1", client_process=self._process_name()
                )
                await link.ask(said, 3)
            self._link = link
        return self._link

    async def _coordinator(self) -> tuple[str, int]:
        self._consulted += 1
        server = self.plan.servers[self._consulted % len(self.plan.servers)]
        link = await Link.open(*server, self.name)
        found = ClusterMetadataResponse.decode(
            await link.repeat(with_length_prefix(ClusterMetadataRequest(self.group).encode_frame()))
        )
        link.abort()
        if found.error_code != ErrorCode.NONE:
            self.note(ErrorCode(found.error_code).name)
            raise ConnectionError("no coordinator")
        return next((broker.host, broker.port) for broker in found.brokers if broker.id == found.coordinator_id)

    async def _live(self, link: Link) -> None:
        self.epoch = 0  # the protocol has none
        self._said = time.monotonic()
        self._positions = with_length_prefix(encode_ping_response([]))
        request = RegisterConsumerRequest(
            group_id=self.group,
            consumer_id=self.name,
            topic_count=json.dumps({self.plan.topic: 1}),
            auto_commit=True,
            auto_offset_reset="smallest",
            session_timeout_ms=self.plan.session_ms,
        )
        code = ErrorCode(ErrorResponse.decode(await link.repeat(with_length_prefix(request.encode_frame()))).error_code)
        if code is not ErrorCode.NONE:
            self.note(code.name)
            link.abort()
            self._link = None
            raise ConnectionError(code.name)
        while True:
            await link.idle(self.plan.session_ms / 1000)

    def _asked(self, frame: bytes) -> bytes:
        is_ping = frame.startswith(_PING)
        if not is_ping or frame.endswith(_NO_RETRY):
            self._owned_until = self._said + ownership_ms(self.plan.session_ms) / 1000
        self._said = time.monotonic()
        if is_ping:
            self.heard.pings += 1
            return self._positions
        asked = decode_coordinator_request(frame)
        if asked.kind is PushType.STOP:
            self._stop_work()
            return _DONE
        partitions = frozenset(partition.partition for partition in asked.partitions)
        if self._working and partitions != self.owned:
            self.note("another map without a Stop")
            return _REFUSED
        self._positions = with_length_prefix(encode_ping_response(asked.partitions))
        self._start_work(partitions)
        if self.plan.leased and self._ending is None:
            self._look_at_lease()
        return _DONE

    def _look_at_lease(self) -> None:
        """Work until the lease ends; a member that released its partitions connects again."""
        left = self._owned_until - time.monotonic()
        self._ending = None
        if left > 0:
            self._ending = asyncio.get_running_loop().call_later(left, self._look_at_lease)
        elif self._working:
            self.note("lease over")
            self._stop_work()
            if self._link is not None:
                self._link.abort()

    def _gone(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        super()._gone()

    async def _say_leave(self, link: Link) -> None:
        self._hold(frozenset())
        kafkas = await Link.open(*self.plan.address(), self.name)
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.name)
        await kafkas.ask(LeaveGroupRequest(group_id=self.group, members=[leaving]), LEAVE)
        kafkas.abort()
