"""Several exporters that split the groups of a cluster between them, and take over from each other.

The exporters are members of a consumer group on the watched cluster. They subscribe to a topic without records, whose
partitions stand for shares. A group belongs to the share that the hash of its name gives. The coordinator assigns each
share to one exporter, which reads the groups of its shares and shows them.

| question | answer |
|---|---|
| topic | `kohort-exporter-shares`, with `SHARES` partitions; more do no harm, fewer are refused |
| who makes it | the first exporter that finds none; two at once do no harm |
| rights | `READ` on the group, `DESCRIBE` on the topic, and `CREATE` on it for the first exporter |
| no right to make it | the exporter reads no group of this cluster, says so, and tries again until somebody made it |
| groups' names | CRC-32 of the UTF-8 bytes, modulo `SHARES`; the same in every process and version |
| partitions' ends | their topic's name has a share too, whose exporter shows all topics of the share |

**Release.** An exporter that must give a share up leaves its groups out of the page first, and then acknowledges. Its
successor shows them after its first read. No series is there twice. For the time of a rebalance and a read it is
missing.

**Crash.** The coordinator evicts a dead exporter after the session timeout, 10 s unless the configuration says
otherwise, and gives its shares to the others. Kohort's brokers notice a closed connection sooner.

**Silence.** An exporter that has not heard the coordinator for a session shows nothing, by its own clock, which begins
earlier than the coordinator's. That also holds for a process that was stopped, from its first answer on. A page that is
being formatted at that moment is sent: that is the only overlap. When the coordinator answers again and nobody took the
shares, their groups are read at once.

**Blindness.** A member whose reads of the cluster fail would keep its groups from the others. Once its last read has
become too old to be shown, it leaves the group, and joins again after a read that works. A read that reaches none of
its groups counts as one that failed. One that reaches some does not: the others may reach no more. A read of groups
that fails again soon makes the next pause longer, up to `REST_MAX_S`.

**State.** Nothing is handed over. A successor knows offsets, lag, time lag, `STOP` and `ERR` from its first read.
Rates, `STALL` and `WARN` need its own reads over a window. Counters of changes begin at 0.

A term numbers an exporter's time with a share. A read counts for the terms in which it began, so that nothing old
is shown when a share comes back.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError, TimedOutError

log = logging.getLogger("kohort.lag")

SHARES = 32
"""The number of shares. Changing it would move groups between exporters of two versions that run side by side."""
SHARES_TOPIC = "kohort-exporter-shares"
SESSION_MS, HEARTBEAT_MS = 10_000, 3_000
"""The timeout after which others take the shares of an exporter that is silent, unless the configuration has one."""
REBALANCE_MS = 30_000
"""The longest time that a rebalance waits for an exporter that sends heartbeats and does not join."""
LOOK_MS = 500
"""The longest time between two looks at the membership; a change is noticed at once."""
RETRY_S = 2.0
"""The pause before the group is joined anew, or the topic looked for again."""
TOPIC_CHECK_S = 10.0
"""How often an exporter without shares looks whether the topic is there."""
JOIN_S = 30.0
"""An exporter that is no member for so long says that it can't read its groups."""
CALL_MS = 10_000
REST_S, REST_MAX_S = 60.0, 600.0
"""How long an exporter that gave its shares up twice without reading them in between takes none; doubled each time."""


def share_number_of(name: str) -> int:
    """Return the number (0 to 31) of the exporter share to which a group or a topic belongs, by a hash of its name."""
    return zlib.crc32(name.encode()) % SHARES


class ExporterShares:
    """This exporter's shares of a cluster's groups, when several exporters divide the groups between them.

    The exporters are members of a consumer group, which assigns each share to one of them. A thread keeps the
    membership until it is closed.

    Args:
        cluster: The cluster's name in log lines.
        group: The consumer group of the exporters.
        topic: The topic whose partitions stand for the shares.
        servers: The cluster's bootstrap servers.
        settings: Settings of connections by Kafka's names; also `session.timeout.ms`, after which others take over.

    Attributes:
        on_look: Called on the thread after each look at the assignment.
    """

    def __init__(self, cluster: str, group: str, topic: str, servers: str, settings: Mapping[str, Any]) -> None:
        self.topic = topic
        self.on_look: Callable[[], None] = lambda: None
        self._cluster, self._group, self._servers = cluster, group, servers
        session_ms = int(settings.get("session.timeout.ms", SESSION_MS))
        self._settings = {
            "client.id": "kohort-exporter",
            "heartbeat.interval.ms": min(HEARTBEAT_MS, max(1, session_ms // 3)),
            **settings,
            "session.timeout.ms": session_ms,
            "max.poll.interval.ms": max(REBALANCE_MS, session_ms),
            "group.protocol": "classic",  # every cluster has it
            "partition.assignment.strategy": "cooperative-sticky",  # others keep theirs while some move
            "metadata.max.age.ms": int(TOPIC_CHECK_S * 1000),  # by it members notice a topic that was made anew
            "allow.auto.create.topics": False,  # a broker would make one partition
        }
        self._terms = itertools.count(1)
        self._owned: Mapping[int, int] = {}
        self._admin: Admin | None = None
        self._member: GroupMember | None = None
        self._error: KafkaError | None = None
        self._joined_s = time.monotonic()
        self._failing_s: float | None = None
        self._rest_s = self._rests_until_s = 0.0
        self._is_resting = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kohort-shares {cluster}", daemon=True)
        self._thread.start()

    def owned_shares(self) -> Mapping[int, int]:
        """Return the shares that this exporter owns now, each with its term; none while its session may have expired.

        A term is a number that is new each time a share is assigned.
        """
        member = self._member
        return self._owned if member is not None and member.is_in_session() else {}

    def check(self) -> None:
        """Check that this exporter is a member of the exporters' group, is joining, or has left it after failed reads.

        Raises:
            KafkaError: The group can't be joined, or joining takes longer than `JOIN_S`; the error says why.
        """
        error, member = self._error, self._member
        if self._is_resting:  # it has left the group on purpose, and rejoins after a read that works
            return
        if error is not None:
            raise error
        if member is not None and time.monotonic() - self._joined_s > JOIN_S:
            raise TimedOutError(f"group {self._group!r}: not a member: {member.why_unassigned()}")

    def record_read_success(self, *, of_shares: bool) -> None:
        """Record that a read of the cluster succeeded.

        An exporter that left the group after failed reads may join again, once its pause is over.

        Args:
            of_shares: Whether the read covered groups of its shares.
        """
        self._failing_s = None
        if of_shares:
            self._rest_s = 0.0
        if self._is_resting and time.monotonic() >= self._rests_until_s:
            log.info("[cluster %s][group %s] reading works again: taking shares", self._cluster, self._group)
            self._is_resting = False

    def record_read_failure(self, limit_s: float) -> None:
        """Record that a read of the cluster failed.

        When none has succeeded for `limit_s`, leave the exporters' group.
        """
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = now_s
        if self._is_resting or not self._owned or now_s - self._failing_s < limit_s:
            return
        text = "[cluster %s][group %s] no read succeeded for %.0f s: leaving the shares to other exporters"
        log.warning(text, self._cluster, self._group, now_s - self._failing_s)
        self._rests_until_s = now_s + self._rest_s
        self._rest_s = min(REST_MAX_S, max(REST_S, 2 * self._rest_s))
        self._is_resting = True

    def close(self) -> None:
        """Leave the exporters' group, so that others take over the shares at once."""
        self._ended.set()
        admin = self._admin
        if admin is not None:
            admin.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if not self._is_resting:
                    self._make_topic()
                    self._take_part()
            except KafkaError as error:
                self._error = error
            except Exception as error:  # a bug must not end the thread: others would wait for this one's shares
                if self._ended.is_set():
                    return
                log.exception(
                    "[cluster %s][group %s] unexpected error while dividing groups between exporters; retrying",
                    self._cluster,
                    self._group,
                )
                self._error = KafkaError(f"group {self._group!r}: unexpected error {type(error).__name__}")
            self._ended.wait(RETRY_S)

    def _make_topic(self) -> None:
        """Create the shares' topic if it is missing, or check the existing one.

        Raises:
            KafkaError: It can't be created, or has too few partitions.
        """
        settings = {name: value for name, value in self._settings.items() if name in _connection_names()}
        with Admin(self._servers, **{**settings, "default.api.timeout.ms": CALL_MS}) as admin:
            self._admin = admin
            try:
                if self._ended.is_set():
                    return
                found = admin.describe_topics([self.topic])
                if self.topic in found.errors:
                    if found.errors[self.topic].code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise found.errors[self.topic]
                    self._create(admin)
                    return
            finally:
                self._admin = None
        partitions = len(found.result(self.topic).partitions)
        if partitions < SHARES:
            raise KafkaError(f"topic {self.topic!r} has {partitions} partitions, and --share needs {SHARES}")

    def _create(self, admin: Admin) -> None:
        error = admin.create_topics([NewTopic(self.topic, SHARES)]).errors.get(self.topic)
        if error is None:
            log.info(
                "[cluster %s] topic %s created: its partitions divide the groups between exporters",
                self._cluster,
                self.topic,
            )
        elif isinstance(error, NotAuthorizedError):
            command = f"kohort topics create {self.topic} --partitions {SHARES}"
            raise NotAuthorizedError(
                f"topic {self.topic!r} is missing, and this user may not create it; somebody who may: {command}",
                error.code,
            )
        elif error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another exporter was first
            raise error

    def _take_part(self) -> None:
        """Be a member of the exporters' group until the exporter closes or leaves the group after failed reads.

        Without shares, look regularly whether the shares' topic still exists, and create it if it does not.

        Raises:
            KafkaError: The group can't be joined, or the topic can't be created.
        """
        self._joined_s = looked_s = time.monotonic()
        with GroupMember(self._servers, self._group, topics=[self.topic], **self._settings) as member:
            self._member = member
            try:
                while not (self._ended.is_set() or self._is_resting):
                    member.wait_change(LOOK_MS)
                    self._follow(member)
                    self.on_look()
                    now_s = time.monotonic()
                    if self._owned or now_s - looked_s < TOPIC_CHECK_S:
                        continue
                    looked_s = now_s
                    self._make_topic()
            finally:
                self._member, self._owned = None, {}

    def _follow(self, member: GroupMember) -> None:
        """Apply the group's assignment: first hide the groups of revoked shares, then release these partitions."""
        revocation = member.revocation()
        before = self._owned
        if revocation is not None:
            gone = {part.partition for part in revocation.partitions}
            self._owned = {share: term for share, term in before.items() if share not in gone}
            member.release()
        if member.group_metadata().generation_id >= 0:
            self._joined_s, self._error = time.monotonic(), None
        shares = {part.partition for part in member.assignment().partitions if part.partition < SHARES}
        kept = self._owned
        self._owned = {share: kept.get(share) or next(self._terms) for share in shares}
        if shares != before.keys():
            log.info(
                "[cluster %s][group %s] this exporter shows the groups of %d of the %d shares now",
                self._cluster,
                self._group,
                len(shares),
                SHARES,
            )


def _connection_names() -> frozenset[str]:
    """Return the names and aliases of all settings of connections: those that `Admin` accepts."""
    from kohort.client.settings import ConnectionConfig
    from kohort.settings.config import settings

    declarations = [setting.declaration for setting in settings(ConnectionConfig).values()]
    return frozenset(name for declared in declarations for name in (declared.name, *declared.aliases))
