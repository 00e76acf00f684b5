"""Group membership in the KIP-848 protocol: the coordinator assigns, and heartbeats carry everything.

========== ======================================================== ====================================================
state      meaning                                                  left by
========== ======================================================== ====================================================
IDLE       no subscription, or left because of a missing poll.      subscribe; poll.
JOINING    a heartbeat with epoch 0 is sent, or with the last epoch its response.
           if the coordinator may still know the member.
HOLDING    an epoch is held. Heartbeats at the interval that the    an assignment that lacks held partitions. Fenced;
           coordinator sets, and at once after a change.            session over by the own clock; poll overdue.
REVOKING   waits for the application to release partitions.         release: acknowledged at once; fenced meanwhile.
LEFT       closed.                                                  -
========== ======================================================== ====================================================

A heartbeat carries only what changed since the last answered one; after a failed one, everything. One heartbeat is in
flight at a time, because its owned partitions acknowledge the response before it. Sent too early, the list would
release partitions that the response assigns.

Partitions are held under the topic id that the coordinator sent. When a topic is deleted and recreated, its old
partitions are given up: the new ones belong to nobody until the coordinator assigns them. Source: KIP-848, "Consumer
Group Protocol"; spec 3.4, 3.11.

A member that gave up by itself rejoins with its last epoch, to learn whether the coordinator still knows it. If not, it
takes a new id. The reason: when a group ends and is created again, its epochs start over. A late commit with the old id
could then match the epoch of the new member.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kohort.client.group.membership import HELD_MS, LEAVE_MS, SESSION_EXPIRED, Membership, MemberState
from kohort.client.net.cluster import Between, Cluster
from kohort.client.net.runtime import Task, logged_kafka_error
from kohort.client.offsets import LOST_COORDINATOR
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import NO_TOPIC_ID, TopicPartition, by_topic
from kohort.wire.discovery import MetadataRequest
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

log = logging.getLogger("kohort.client")
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
_PATTERNS_SINCE = 1
"""The first version of heartbeats with a pattern; older coordinators receive the topics that match now."""
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_AGAIN = (*LOST_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNRELEASED_INSTANCE_ID)
_FIRST_INTERVAL_MS = 5_000


class HeartbeatFields(NamedTuple):
    """The fields of a ConsumerGroupHeartbeat; None, or -1 for a time, is a field that did not change and is not sent.

    Attributes:
        topics: The subscribed topic names; empty with a pattern.
        matched: The same for a coordinator without patterns: with a pattern, the topics that match it now.
        pattern: The regular expression; "" removes an earlier one.
    """

    topics: Collection[str] | None
    matched: Collection[str] | None
    pattern: str | None
    assignor: str | None
    rebalance_timeout_ms: int
    rack: str | None
    owned: dict[uuid.UUID, list[int]] | None

    def fields_changed_since(self, sent: HeartbeatFields) -> HeartbeatFields:
        """Return the fields that changed since an earlier state."""
        return HeartbeatFields(
            topics=None if self.topics == sent.topics else self.topics,
            matched=None if self.matched == sent.matched else self.matched,
            pattern=None if self.pattern == sent.pattern else self.pattern,
            assignor=None if self.assignor == sent.assignor else self.assignor,
            rebalance_timeout_ms=(
                -1 if self.rebalance_timeout_ms == sent.rebalance_timeout_ms else self.rebalance_timeout_ms
            ),
            rack=None if self.rack == sent.rack else self.rack,
            owned=None if self.owned == sent.owned else self.owned,
        )


NO_FIELDS = HeartbeatFields(None, None, None, None, -1, None, None)


class ConsumerMembership(Membership):
    """A member in the KIP-848 protocol."""

    NOT_JOINED = 0

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        requires_polling: bool = True,
        new_member_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """Make an idle member; `new_member_id` is called once each time that the member joins as a new one."""
        super().__init__(cluster, config, changed=changed, requires_polling=requires_polling)
        self._new_member_id = new_member_id
        self._interval_ms: float = _FIRST_INTERVAL_MS
        self._known_epoch = _JOIN
        self._target: dict[uuid.UUID, list[int]] | None = None
        self._held_ids: dict[str, uuid.UUID] = {}
        self._sent_fields = NO_FIELDS
        self._used_pattern = False
        self._beating: Task[None] | None = None
        self._hurried = False
        self._naming: Task[None] | None = None
        self._failures = 0
        self._may_hold_instance = False  # since an answer was lost, or this member was fenced
        self._pause_ms: float = _FIRST_INTERVAL_MS
        self._due_ms = 0.0
        self._urgent = False

    # Lifecycle.

    async def _run_member(self) -> None:
        while True:
            await self._until(lambda: self._subscription is not None and self.error is None and not self._overdue)
            try:
                await self._member()
            except RetriableError as error:
                self._failures += 1
                self._log_retry(error, self._failures)
                await self.cluster.runtime.sleep(self.cluster.backoff_ms(self._failures))
            except Exception as error:  # noqa: BLE001 - the application gets any error
                await self._fatal(logged_kafka_error(f"group {self.group!r}", error))

    async def _member(self) -> None:
        """Join or rejoin the group, and heartbeat until the member is fenced or has not polled in time.

        Partitions still held from an earlier membership are reported as lost first.
        """
        if self.assignment.partitions:
            await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
        if not self._member_id:
            self._member_id, self._known_epoch = self._new_member_id(), _JOIN
        runtime = self.cluster.runtime
        self._sent_fields, self._target, self._urgent = NO_FIELDS, None, True
        self._unsettle()
        self._generation, self.state = _JOIN, MemberState.JOINING
        self._heard_ms = runtime.now_ms
        while True:
            if self._fenced is not None:
                code = self._fenced
                if code is not ErrorCode.FENCED_MEMBER_EPOCH:
                    self._member_id = ""
                await self._lose(code)
                return
            if runtime.now_ms >= self._session_end_ms and self.is_joined:
                self._fence(
                    ErrorCode.FENCED_MEMBER_EPOCH, SESSION_EXPIRED
                )  # the coordinator may still know it, at its epoch
                continue
            poll_left = self._poll_time_left_ms()
            if poll_left is not None and poll_left <= 0:
                await self._poll_overdue()
                return
            if self.error is not None:
                raise self.error
            self._beat_if_due()
            self._reconcile()
            if self._fenced is None and not self._may_beat_now():
                await runtime.wait_first(self._moved, timeout_ms=self._quiet_ms())

    def _may_beat_now(self) -> bool:
        """Return whether a heartbeat is due, and none is in flight."""
        if self._beating is not None and self._beating.done:
            self._beating = None
        return self._beating is None and (self._urgent or self.cluster.runtime.now_ms >= self._due_ms)

    def _beat_if_due(self) -> None:
        if self._may_beat_now():
            self._urgent = self._hurried = False
            self._pause_ms = self._lease.heartbeat_interval_ms(self._interval_ms)
            self._due_ms = self.cluster.runtime.now_ms + self._pause_ms
            self._beating = self.cluster.spawn_essential_task(self._beat(), f"heartbeat of {self.group}")
        elif self._urgent and not self._hurried:
            self._hurried = True
            self.cluster.runtime.spawn(self._hurry(), f"news of {self.group}")

    async def _hurry(self) -> None:
        """Send an empty Metadata request, so that a kohort broker answers the delayed heartbeat at once.

        The member has a change to report, and only one heartbeat may be in flight.
        """
        anything = MetadataRequest(topics=[])
        with contextlib.suppress(KafkaError):  # the heartbeat fails too, and is retried
            await self.cluster.send(anything, self._coordinator, timeout_ms=self.config.request_timeout_ms)

    def _quiet_ms(self) -> float | None:
        """Return the time, in ms, to the member's next deadline: heartbeat, end of the session, or overdue poll."""
        now = self.cluster.runtime.now_ms
        waits = [self._due_ms - now] if self._beating is None else []
        if self.is_joined:
            waits.append(self._session_end_ms - now)
        poll_left = self._poll_time_left_ms()
        if poll_left is not None:
            waits.append(poll_left)
        return max(1.0, min(waits)) if waits else None

    # Heartbeats.

    async def _beat(self) -> None:
        """Send one heartbeat; an error that a retry does not cure becomes the member's error."""
        try:
            await self._beat_once()
        except Exception as error:  # noqa: BLE001 - the application gets any error
            self.error = logged_kafka_error(f"heartbeat of group {self.group!r}", error)
            self._move()

    async def _beat_once(self) -> None:
        runtime = self.cluster.runtime
        facts = self._current_fields()
        news = facts.fields_changed_since(self._sent_fields)
        self._sent_fields = facts
        sent, sent_elapsed = runtime.now_ms, runtime.clock_with_sleep_ms()
        limit = self._lease.response_timeout_ms(
            min(self.config.request_timeout_ms, max(HELD_MS, self._interval_ms * 2))
        )
        try:
            answer = await self._ask_coordinator(self._request(news), limit)
        except RetriableError as error:
            self._may_hold_instance = True
            self._retry_join(str(error))
            return
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.UNRELEASED_INSTANCE_ID and self._may_hold_instance:
            await self._release_instance_id()
        if code is ErrorCode.NONE:
            self._failures, self._may_hold_instance = 0, False
            self._heard_ms = sent
            self._renew(sent_elapsed)
            self._take_in(answer)
        elif code in _AGAIN:
            if code in LOST_COORDINATOR:
                self.cluster.forget_coordinator(self._coordinator)
            if code is ErrorCode.UNRELEASED_INSTANCE_ID and sent - self._heard_ms > self.config.session_timeout_ms:
                self.error = error_for(code, f"group {self.group!r}: {answer.error_message or code.text}")
            self._retry_join(code.text)
        elif code in _FENCED or (code is ErrorCode.GROUP_ID_NOT_FOUND and self._epoch != _JOIN):
            # A group that was deleted, or has another protocol now, has given its partitions to others.
            self._known_epoch = _JOIN
            self._may_hold_instance = code is ErrorCode.FENCED_MEMBER_EPOCH
            self._fence(code, answer.error_message or "")
        else:
            self.error = error_for(code, f"group {self.group!r}: {answer.error_message or code.text}")
            self._move()

    async def _release_instance_id(self) -> None:
        """Send a leave request for this static member's instance id, which its own earlier join may still hold.

        That happens if the answer to the join was lost, or the member was fenced. Kafka's coordinator would refuse a
        new join until the session is over. The request is refused if another member has the instance id.
        """
        self._may_hold_instance = False
        with contextlib.suppress(KafkaError):  # the next join shows whether the id was released
            await self._request_leave()

    def _retry_join(self, reason: str) -> None:
        self._sent_fields = NO_FIELDS
        self._failures += 1
        self._log_retry(reason, self._failures)
        self._due_ms = self.cluster.runtime.now_ms + self.cluster.backoff_ms(self._failures)
        self._move()

    def _take_in(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.heartbeat_interval_ms > 0:
            self._interval_ms = answer.heartbeat_interval_ms
            before, self._pause_ms = self._pause_ms, self._lease.heartbeat_interval_ms(self._interval_ms)
            self._due_ms += self._pause_ms - before
        if answer.member_id:
            self._member_id = answer.member_id
        if answer.member_epoch != self._generation:
            self._generation = self._known_epoch = answer.member_epoch
            if self.state is MemberState.HOLDING and self.revocation is None:
                self._hold(self.assignment.partitions, None)
        if answer.assignment is not None:
            self._target = {entry.topic_id: list(entry.partitions) for entry in answer.assignment.topic_partitions}
        self._move()

    @property
    def _epoch(self) -> int:
        """Return the member epoch for a heartbeat: the current one; before the join, the last known one of the id."""
        return self._generation or self._known_epoch

    def _current_fields(self) -> HeartbeatFields:
        """Return the fields that describe this member to the coordinator now.

        For the coordinator, topic names and pattern add up: the one that the subscription no longer has is sent empty.
        """
        subscription, matched = self._subscription, self.topics()
        pattern = subscription.pattern if subscription is not None else None
        self._used_pattern = self._used_pattern or pattern is not None
        owned = {self._held_ids[topic]: numbers for topic, numbers in by_topic(self.assignment.partitions).items()}
        return HeartbeatFields(
            topics=matched if pattern is None else (),
            matched=matched,
            pattern=f"(?s).*(?:{pattern}).*" if pattern is not None else "" if self._used_pattern else None,
            assignor=self.config.group_remote_assignor,
            rebalance_timeout_ms=self.config.max_poll_interval_ms,
            rack=self.config.client_rack or None,
            owned=owned,
        )

    def _request(self, news: HeartbeatFields) -> Between[ConsumerGroupHeartbeatResponse]:
        request = self._heartbeat(news)
        request.subscribed_topic_names = None if news.topics is None else list(news.topics)
        if not self._used_pattern:
            return Between(request)
        request.subscribed_topic_regex = news.pattern
        older = self._heartbeat(news)
        older.subscribed_topic_names = None if news.matched is None else list(news.matched)
        return Between(request, lowest=_PATTERNS_SINCE, instead=older)

    def _heartbeat(self, news: HeartbeatFields) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=self.config.group_instance_id,
            rack_id=news.rack,
            rebalance_timeout_ms=news.rebalance_timeout_ms,
            server_assignor=news.assignor,
        )
        if news.owned is not None:
            entry = ConsumerGroupHeartbeatRequest.TopicPartitions
            request.topic_partitions = [entry(topic_id=topic, partitions=parts) for topic, parts in news.owned.items()]
        return request

    # Assignments.

    def _reconcile(self) -> None:
        """Reconcile the held partitions with the newest target assignment: revoke first, then assign."""
        if not self.is_joined:
            return
        target = self._target
        partitions = None if target is None else self._target_by_name(target)
        replaced = self.recreated_topics()
        held = self.assignment.partitions
        kept = set(held if partitions is None else partitions)
        revoked = [part for part in held if part not in kept or part.topic in replaced]
        if revoked:
            self._revoke_and_keep_beating(revoked, ask_for_all=bool(replaced))
            return
        if target is None or partitions is None:
            return
        if target is self._target:
            self._target = None
        if self.state is not MemberState.HOLDING or partitions != self.assignment.partitions:
            self._urgent = partitions != self.assignment.partitions
            names = self.cluster.metadata.topic_names
            self._held_ids = {names[topic]: topic for topic in target}
            self._complete_rebalance(partitions, None)

    def recreated_topics(self) -> set[str]:
        """Return the topics of held partitions that were recreated: their id is no longer the one of the assignment."""
        known = self.cluster.metadata.topic_id
        held = {part.topic for part in self.assignment.partitions}
        return {topic for topic in held if known(topic) not in (NO_TOPIC_ID, self._held_ids[topic])}

    def _revoke_and_keep_beating(self, revoked: Iterable[TopicPartition], *, ask_for_all: bool = False) -> None:
        if self.revocation is None:
            waiting = self.cluster.spawn_essential_task(self._revoke(revoked), f"revocation of {self.group}")
            waiting.on_done(lambda _: self._released(ask_for_all))

    def _released(self, ask_for_all: bool) -> None:
        if ask_for_all:
            self._sent_fields = NO_FIELDS
        self._urgent = True
        self._move()

    def _target_by_name(self, target: dict[uuid.UUID, list[int]]) -> tuple[TopicPartition, ...] | None:
        """Return the target assignment with topic names.

        None while the metadata lacks a topic, which a background task then looks up.
        """
        names = self.cluster.metadata.topic_names
        unknown = [topic for topic in target if topic not in names]
        if unknown:
            if self._naming is None or self._naming.done:
                self._naming = self.cluster.spawn_essential_task(self._learn_names(unknown), f"topics of {self.group}")
            return None
        return tuple(
            sorted(TopicPartition(names[topic], number) for topic, parts in target.items() for number in parts)
        )

    async def _learn_names(self, topics: list[uuid.UUID]) -> None:
        """Look up the names of assigned topic ids, once; after a failure the member requests it again."""
        try:
            await self.cluster.describe_topic_ids(topics)
        except RetriableError as error:
            log.debug(
                "[group %s] names of newly assigned topic ids could not be looked up, retrying: %s", self.group, error
            )
        except Exception as error:  # noqa: BLE001 - the application gets any error
            self.error = logged_kafka_error(f"topics of group {self.group!r}", error)
        if any(topic not in self.cluster.metadata.topic_names for topic in topics):
            await self.cluster.runtime.sleep(self.cluster.backoff_ms(1))
        self._naming = None
        self._move()

    # Implementation of `Membership`.

    def _subscription_changed(self) -> None:
        self._urgent = True

    def _metadata_changed(self) -> None:
        self._move()

    def _want_topics(self) -> None:
        if self._subscription is not None:
            self.cluster.set_wanted_topics(
                self, self._subscription.topics if self._subscription.pattern is None else None
            )

    def _stop_tasks(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if self._naming is not None:
            self._naming.cancel()
            self._naming = None

    async def _send_leave(self, reason: str) -> None:
        if not self._member_id or (not self.is_joined and self.state is not MemberState.LEFT):
            return
        await self._request_leave()

    async def _request_leave(self) -> None:
        epoch = _LEAVE if self.config.group_instance_id is None else _LEAVE_STATIC
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=self.config.group_instance_id,
        )
        await self._ask_coordinator(request, min(self.config.request_timeout_ms, LEAVE_MS), f"leave:{self.group}")
