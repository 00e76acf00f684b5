"""Clients of our own with one known fault each; `mutants` names the checker that detects it."""

from __future__ import annotations

from typing import Any, ClassVar

from kohort.client.group.classic import ClassicMembership, ClassicProtocol
from kohort.client.group.kip848 import ConsumerMembership
from kohort.groups.machine import GroupMachine


class _ClassicLease(ClassicMembership):
    def _renew(self, sent_ms: float) -> None:
        super()._renew(self.cluster.runtime.elapsed_ms())


class _ConsumerLease(ConsumerMembership):
    def _renew(self, sent_ms: float) -> None:
        super()._renew(self.cluster.runtime.elapsed_ms())


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
    """Our client takes its session to run from when an answer came."""

    memberships: ClassVar = {"classic": _ClassicSession, "consumer": _ConsumerSession}


class CountsLeasesFromAnswers(GroupMachine):
    """Our client takes its lease to run from when an answer came."""

    memberships: ClassVar = {"classic": _ClassicLease, "consumer": _ConsumerLease}


class KeepsDeletedTopics(GroupMachine):
    """Our client, as a classic group's leader, does not see that a topic is gone."""

    memberships: ClassVar = {"classic": _BlindLeader, "consumer": ConsumerMembership}
