"""Members of kohort's own client with one known fault each; `mutants` names the checker that detects it."""

from __future__ import annotations

from typing import Any, ClassVar

from kohort.client.group.classic import ClassicMembership, ClassicProtocol
from kohort.client.group.kip848 import ConsumerMembership
from kohort.groups.machine import GroupMachine


class _ClassicLease(ClassicMembership):
    def _renew(self, sent_ms: float) -> None:
        super()._renew(self.cluster.runtime.clock_with_sleep_ms())


class _ConsumerLease(ConsumerMembership):
    def _renew(self, sent_ms: float) -> None:
        super()._renew(self.cluster.runtime.clock_with_sleep_ms())


class _BlindProtocol(ClassicProtocol):
    def _leader_sees_change(self) -> bool:
        gone = [topic for topic in self._assigned_for if not self._cluster.metadata.partitions_of(topic)]
        return not gone and super()._leader_sees_change()


class _BlindLeader(ClassicMembership):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.protocol = _BlindProtocol(self.cluster, self.config, self, self.request_rejoin)


class _ClassicSession(ClassicMembership):
    def _renew(self, sent_ms: float) -> None:
        self._heard_ms = self.cluster.runtime.now_ms
        super()._renew(sent_ms)


class _ConsumerSession(ConsumerMembership):
    def _renew(self, sent_ms: float) -> None:
        self._heard_ms = self.cluster.runtime.now_ms
        super()._renew(sent_ms)


class CountsSessionsFromAnswers(GroupMachine):
    """A client that counts its session from the arrival of a response, instead of from the request's sending."""

    memberships: ClassVar = {"classic": _ClassicSession, "consumer": _ConsumerSession}


class CountsLeasesFromAnswers(GroupMachine):
    """A client that counts its lease from the arrival of a response, instead of from the request's sending."""

    memberships: ClassVar = {"classic": _ClassicLease, "consumer": _ConsumerLease}


class KeepsDeletedTopics(GroupMachine):
    """A client that does not notice, as a classic group's leader, that a topic was deleted."""

    memberships: ClassVar = {"classic": _BlindLeader, "consumer": ConsumerMembership}
