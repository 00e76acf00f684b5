"""Members of the push protocol, without data: they register, then answer what they are asked.

They speak as the protocol's text has it and no more: no lease, no leave of its own. One that leaves says so by Kafka's
LeaveGroup on another connection, as kohort's clients do, since the text has nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from bench.coordinator.members import LEAVE, Member
from bench.coordinator.wire import Link
from kohort.errors import ErrorCode
from kohort.wire.cluster import ApiVersionsRequest
from kohort.wire.groups import LeaveGroupRequest
from kohort.wire.push import (
    ErrorResponse,
    PushType,
    RegisterConsumerRequest,
    decode_asked,
    encode_ping_answer,
    framed,
)

_PING = PushType.PING.to_bytes(2, "big")
_DONE, _REFUSED = framed(ErrorResponse(0).encode()), framed(ErrorResponse(-1).encode())
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

    async def _open(self) -> Link:
        if self._link is None:
            link = await PushLink.open(*self.plan.address(), self.name)
            link.asked = self._asked
            if self.plan.processes:
                said = ApiVersionsRequest(
                    client_software_name="kohort", client_software_version="1", client_process=self._process_name()
                )
                await link.ask(said, 3)
            self._link = link
        return self._link

    async def _live(self, link: Link) -> None:
        self.epoch = 0  # the protocol has none
        self._positions = framed(encode_ping_answer([]))
        request = RegisterConsumerRequest(
            group_id=self.group,
            consumer_id=self.name,
            topic_count=json.dumps({self.plan.topic: 1}),
            auto_commit=True,
            auto_offset_reset="smallest",
            session_timeout_ms=self.plan.session_ms,
        )
        code = ErrorCode(ErrorResponse.decode(await link.repeat(framed(request.encode()))).error_code)
        if code is not ErrorCode.NONE:
            self.note(code.name)
            link.abort()
            self._link = None
            raise ConnectionError(code.name)
        while True:
            await link.idle(self.plan.session_ms / 1000)

    def _asked(self, frame: bytes) -> bytes:
        if frame.startswith(_PING):
            self.heard.pings += 1
            return self._positions
        asked = decode_asked(frame)
        if asked.kind is PushType.STOP:
            self._stop_work()
            return _DONE
        told = frozenset(each.partition for each in asked.partitions)
        if self._working and told != self.owned:
            self.note("another map without a Stop")
            return _REFUSED
        self._positions = framed(encode_ping_answer(asked.partitions))
        self._start_work(told)
        return _DONE

    async def _say_leave(self, link: Link) -> None:
        self._hold(frozenset())
        kafkas = await Link.open(*self.plan.address(), self.name)
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.name)
        await kafkas.ask(LeaveGroupRequest(group_id=self.group, members=[leaving]), LEAVE)
        kafkas.abort()
