"""The way to a push group's coordinator: the bootstrap brokers are asked, round robin, for ever. Source: spec 4.10."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kohort.client.net.claimed import Claimed
from kohort.client.net.cluster import Cluster
from kohort.client.net.links import Address, ConnectionFailed
from kohort.client.net.notices import Sparingly
from kohort.errors import ErrorCode, KafkaError, RetriableError, TimedOutError, error_for
from kohort.wire.push import ClusterMetadataRequest, ClusterMetadataResponse, ErrorResponse, RegisterConsumerRequest

log = logging.getLogger("kohort.client")
CONSULT_SHARE = 1 / 3
"""Of a session: as often as a consumer is pinged."""
MUTE_MAX = 3
"""So many times in a row brokers end a connection that stood, instead of answering: they don't speak the protocol."""


class PushCoordinator:
    """Finds the coordinator of one group and registers there."""

    def __init__(self, cluster: Cluster, group: str, session_timeout_ms: float, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._session_ms = session_timeout_ms
        self._group = group
        self._changed = changed
        self._next = 0
        self._mute = 0
        self._reached = False
        self._lane = f"push:{group}"
        self._sparingly = Sparingly(cluster.runtime)

    async def register(self, registration: RegisterConsumerRequest, now: Callable[[], float]) -> tuple[Claimed, float]:
        """A connection on which the consumer is registered, and when `now` said that it asked for that.

        Raises:
            RetriableError: it can't be for now.
            KafkaError: it is refused, with the reason.
        """
        node, address = await self._find()
        link = await self._claim(node, address)
        sent_ms = now()
        link.send(registration.encode())
        frame = await link.next(self._cluster.runtime, self._patience_ms(1))
        if frame is None:
            why = link.ended or "no answer to the registration"
            link.close(why)
            raise ConnectionFailed(f"{address}: {why}")
        code = ErrorCode.of(ErrorResponse.decode(frame).error_code)
        if code is ErrorCode.NONE:
            return link, sent_ms
        link.close(code.name)
        text = f"group {self._group!r}: {address} refuses this consumer: {code.name}: {code.text}"
        if code is ErrorCode.FENCED_INSTANCE_ID:  # an earlier connection of this process is thought to stand
            raise RetriableError(text, code)
        raise error_for(code, text)

    async def _find(self) -> tuple[int, Address]:
        """The coordinator's id and address; ends with an answer only.

        The waits grow where brokers are reached: those that are not are paced by the waits before they are connected.
        """
        bootstrap = self._cluster.bootstrap
        failed: dict[Address, str] = {}
        failures = refused = 0
        while True:
            index = self._next % len(bootstrap)
            self._next += 1
            try:
                return await self._consult(-1 - index, bootstrap[index])
            except RetriableError as error:
                failed[bootstrap[index]] = str(error)
                failures += 1
                refused += self._reached
            if failures % len(bootstrap) == 0:
                self._tell_failed(failed)
                config = self._cluster.config
                rounds = -(-refused // len(bootstrap))
                wait = self._cluster.links.backoff_ms(rounds, config.retry_backoff_ms, config.retry_backoff_max_ms)
                await self._cluster.runtime.sleep(wait)

    def _tell_failed(self, failed: dict[Address, str]) -> None:
        if self._sparingly.due("bootstrap"):
            log.error(
                "group %s: AllKnownBrokersNotAvailable: none of the bootstrap brokers names the coordinator (%s); they "
                "are asked again for ever: if brokers have moved, start this consumer with their new addresses",
                self._group,
                "; ".join(failed.values()),
            )

    async def _consult(self, node: int, address: Address) -> tuple[int, Address]:
        """Ask one broker.

        Raises:
            RetriableError: it can't be reached, or knows no coordinator.
            KafkaError: UNSUPPORTED_VERSION: it does not speak the protocol.
        """
        self._reached = False
        link = await self._claim(node, address)
        self._reached = True
        try:
            link.send(ClusterMetadataRequest(self._group).encode())
            frame = await link.next(self._cluster.runtime, self._patience_ms(CONSULT_SHARE))
            if frame is None:
                self._no_answer(link, address)
            assert frame is not None
            answer = ClusterMetadataResponse.decode(frame)
        finally:
            link.close("it was consulted")
        self._mute = 0
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{address} names no coordinator of group {self._group!r}: {code.text}")
        for broker in answer.brokers:
            if broker.id == answer.coordinator_id:
                return broker.id, Address(broker.host, broker.port)
        raise ConnectionFailed(f"{address} names coordinator {answer.coordinator_id}, which is none of its brokers")

    def _no_answer(self, link: Claimed, address: Address) -> None:
        """Raises, with the reason."""
        if link.ended is None:
            raise TimedOutError(f"{address}: no answer to ClusterMetadata")
        self._mute += 1
        if self._mute < MUTE_MAX:
            raise ConnectionFailed(f"{address}: {link.ended}")
        self._mute = 0
        raise KafkaError(
            f"{address} ends the connection when it is asked for the coordinator of a push group: it does not speak "
            "the push protocol; use group.protocol=consumer or classic there",
            ErrorCode.UNSUPPORTED_VERSION,
        )

    def _patience_ms(self, share: float) -> float:
        """How long an answer is waited for: one that stands still takes connections, and others are there to ask."""
        return min(self._cluster.config.request_timeout_ms, self._session_ms * share)

    async def _claim(self, node: int, address: Address) -> Claimed:
        links = self._cluster.links
        timeout_ms = min(self._cluster.config.socket_connection_setup_timeout_ms, self._patience_ms(CONSULT_SHARE))
        return links.claim(await links.acquire(node, address, self._lane, timeout_ms), self._changed)
