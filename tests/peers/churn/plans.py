"""Plans of a churn run: clients, protocols over time, and the frequency of each event."""

from __future__ import annotations

from dataclasses import dataclass

CLASSIC, CONSUMER, PUSH = "classic", "consumer", "push"
TOPICS = {"orders": 10, "parts": 2}
"""Topics with their numbers of partitions: by range, `orders` has one for every member, `parts` for the first two
only."""
GROWN = "parts", 4
"""The topic that grows when this share of the time is over, and its partitions then."""
GROWS_AT = 0.4


@dataclass(frozen=True, slots=True)
class Kind:
    """A client and how many members of it the group has when nothing is missing."""

    client: str
    count: int = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """From a share of the run's time on, new members speak one of these protocols; members of others are retired."""

    since: float
    protocols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of run.

    Attributes:
        strategy: the classic assignor that all members list.
        static: members have instance ids, and now and then two processes have the same.
        session_ms, heartbeat_ms, rebalance_ms: the same for classic members and, by the broker's settings, for the
            others.
    """

    name: str
    kinds: tuple[Kind, ...]
    stages: tuple[Stage, ...]
    strategy: str = "range"
    static: bool = False
    session_ms: int = 6_000
    heartbeat_ms: int = 1_000
    rebalance_ms: int = 20_000

    def protocols(self, share: float) -> tuple[str, ...]:
        """Return the protocol of new members after this share of the time."""
        return [stage.protocols for stage in self.stages if stage.since <= share][-1]

    @property
    def broker_settings(self) -> dict[str, str | int]:
        """Return the settings of both brokers, ours and Apache Kafka."""
        return {
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": min(6_000, self.session_ms),
            "group.consumer.min.session.timeout.ms": self.session_ms,
            "group.consumer.session.timeout.ms": self.session_ms,
            "group.consumer.min.heartbeat.interval.ms": self.heartbeat_ms,
            "group.consumer.heartbeat.interval.ms": self.heartbeat_ms,
            "group.consumer.migration.policy": "bidirectional",
        }


_BOTH = (Kind("kohort"), Kind("java"), Kind("librdkafka"), Kind("franz-go"))
_CLASSIC_ONLY = (Kind("aiokafka", 1), Kind("kafka-python", 1))
_THERE_AND_BACK = (
    Stage(0.0, (CLASSIC,)),
    Stage(0.15, (CONSUMER, CLASSIC)),
    Stage(0.35, (CONSUMER,)),
    Stage(0.6, (CONSUMER, CLASSIC)),
    Stage(0.8, (CLASSIC,)),
)

PLANS = {
    plan.name: plan
    for plan in (
        Plan("classic-range", _BOTH + _CLASSIC_ONLY, (Stage(0.0, (CLASSIC,)),)),
        Plan("classic-cooperative", _BOTH, (Stage(0.0, (CLASSIC,)),), strategy="cooperative-sticky"),
        Plan("consumer", _BOTH, (Stage(0.0, (CONSUMER,)),)),
        Plan("static-range", _BOTH + _CLASSIC_ONLY, (Stage(0.0, (CLASSIC,)),), static=True),
        Plan("static-consumer", _BOTH, (Stage(0.0, (CONSUMER,)),), static=True),
        Plan("mixed", _BOTH, (Stage(0.0, (CONSUMER, CLASSIC)),)),
        Plan("migration", _BOTH, _THERE_AND_BACK),
        Plan("migration-cooperative", _BOTH, _THERE_AND_BACK, strategy="cooperative-sticky"),
    )
}
