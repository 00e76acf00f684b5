"""The group coordinator's settings, under Kafka's property names."""

from __future__ import annotations

from dataclasses import dataclass

from kohort.settings.config import declare_setting

MINUTE_MS = 60_000
MIB = 1 << 20
INT_MAX = 2**31 - 1


def _distinct_assignors(names: tuple[str, ...]) -> None:
    if not names:
        raise ValueError("name at least one assignor: the first is the default of groups")
    if len(set(names)) < len(names):
        raise ValueError("name each assignor once")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The group coordinator's settings: names and defaults of Kafka 4.4, except where `why` says otherwise."""

    min_session_timeout_ms: int = declare_setting(
        "group.min.session.timeout.ms", 6_000, low=1, unit="ms", why="shorter sessions cost heartbeats"
    )
    max_session_timeout_ms: int = declare_setting(
        "group.max.session.timeout.ms", 1_800_000, low=1, unit="ms", why="longer sessions find failures later"
    )
    initial_rebalance_delay_ms: int = declare_setting(
        "group.initial.rebalance.delay.ms",
        3_000,
        low=0,
        unit="ms",
        why="an empty group waits for more members before its first generation",
    )
    group_max_size: int = declare_setting(
        "group.max.size", INT_MAX, low=1, unit="members", why="a classic group refuses members beyond it"
    )
    new_member_timeout_ms: int = declare_setting(
        "group.new.member.join.timeout.ms",
        300_000,
        low=1,
        unit="ms",
        why="how long a member of an old client, which learns its id from the join's reply, waits for it "
        "(Kafka: fixed)",
    )
    group_record_bytes_max: int = declare_setting(
        "group.record.max.bytes",
        16 * MIB,
        low=1024,
        high=256 * MIB,
        unit="bytes",
        why="a classic group is one record, as is a consumer group's member; a join that could outgrow it is refused "
        "(Kafka: message.max.bytes, found at sync)",
    )
    commit_bytes_max: int = declare_setting(
        "offset.commit.max.bytes",
        128 * MIB,
        low=MIB,
        high=256 * MIB,
        unit="bytes",
        why="all records of one commit are one append; each holds the names of its group and topic, so a small request "
        "can ask for many bytes (Kafka: message.max.bytes)",
    )
    groups_max: int = declare_setting(
        "group.coordinator.max.groups",
        100_000,
        low=1,
        unit="groups",
        why="bounds the memory of one shard; 1,000 characters of groups' names count as one more (Kafka: none)",
    )
    protocols_max: int = declare_setting(
        "group.member.max.protocols", 100, low=1, unit="strategies", why="bounds one member's memory (Kafka: none)"
    )

    offset_metadata_bytes_max: int = declare_setting(
        "offset.metadata.max.bytes",
        4_096,
        low=0,
        high=32_767,
        unit="bytes",
        why="bounds the note that a commit may carry; a record holds no longer one",
    )
    offsets_retention_minutes: int = declare_setting(
        "offsets.retention.minutes", 10_080, low=1, unit="minutes", why="how long offsets that no member reads are kept"
    )
    offsets_retention_check_ms: int = declare_setting(
        "offsets.retention.check.interval.ms", 600_000, low=1, unit="ms", why="how often expired offsets are looked for"
    )

    group_import: str = declare_setting(
        "group.import",
        "off",
        choices=("off", "auto"),
        why="auto: a coordinator over a Kafka cluster takes over, when a group is first named, the offsets of it that "
        "Kafka's own coordinator has; a broker by itself has no earlier coordinator to ask",
    )
    rebalance_protocols: tuple[str, ...] = declare_setting(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "push"),
        choices=("classic", "consumer", "streams", "share", "push"),
        why="which protocols the coordinator speaks (Kafka's default has no push)",
    )
    consumer_session_timeout_ms: int = declare_setting(
        "group.consumer.session.timeout.ms", 45_000, low=1, unit="ms", why="silence after which a member is evicted"
    )
    consumer_min_session_timeout_ms: int = declare_setting(
        "group.consumer.min.session.timeout.ms", 45_000, low=1, unit="ms", why="bounds a group's own setting"
    )
    consumer_max_session_timeout_ms: int = declare_setting(
        "group.consumer.max.session.timeout.ms", 60_000, low=1, unit="ms", why="bounds a group's own setting"
    )
    consumer_heartbeat_interval_ms: int = declare_setting(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        low=1,
        unit="ms",
        why="told to settled members; a third of their session timeout if it is not shorter than that (Kafka: refused)",
    )
    consumer_min_heartbeat_interval_ms: int = declare_setting(
        "group.consumer.min.heartbeat.interval.ms", 5_000, low=1, unit="ms", why="bounds a group's own setting"
    )
    consumer_max_heartbeat_interval_ms: int = declare_setting(
        "group.consumer.max.heartbeat.interval.ms", 15_000, low=1, unit="ms", why="bounds a group's own setting"
    )
    consumer_max_size: int = declare_setting(
        "group.consumer.max.size", INT_MAX, low=1, unit="members", why="a consumer group refuses members beyond it"
    )
    consumer_assignors: tuple[str, ...] = declare_setting(
        "group.consumer.assignors",
        ("uniform", "range"),
        choices=("uniform", "range"),
        check=_distinct_assignors,
        why="server-side assignors; the first is the default",
    )
    consumer_migration_policy: str = declare_setting(
        "group.consumer.migration.policy",
        "bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        why="whether groups with members move between the classic and the consumer protocol",
    )
    consumer_regex_refresh_ms: int = declare_setting(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        low=10_000,
        unit="ms",
        why="regular expressions are resolved again this often, and when topics change",
    )

    notify_at_once: str = declare_setting(
        "group.notify.at.once",
        "known",
        choices=("off", "known", "all"),
        why="members learn of a rebalance before their next heartbeat is due: off, clients known to bear it, or all",
    )
    notice_disconnects: str = declare_setting(
        "group.notice.disconnects",
        "known",
        choices=("off", "known", "all"),
        why="members whose connection ends and who are not back soon are evicted before their session ends: off, "
        "clients known to keep a lease (kohort's own), or all. Of other clients a member that lives on has its commits "
        "refused, but works on records of others until it hears of it: hence not all unless asked for",
    )
    disconnect_lease_ms: int = declare_setting(
        "group.disconnect.lease.ms",
        5_000,
        low=1_000,
        unit="ms",
        why="a client that keeps a lease hands out nothing when it had no answer for so long, and is evicted after it "
        "when its connection has ended; it sends heartbeats 2.5 times as often or more",
    )
    unsettled_interval_ms: int = declare_setting(
        "group.unsettled.heartbeat.interval.ms",
        200,
        low=10,
        unit="ms",
        why="told to consumer members that wait for others or must revoke (Kafka: the plain interval)",
    )

    push_rebalance_threads: int = declare_setting(
        "push.rebalance.threads",
        4,
        low=1,
        high=64,
        unit="threads",
        why="push groups are divided in so many queues with a thread each, a group in one: a slow assignor holds up "
        "the groups of its queue only",
    )
    push_communication_threads: int = declare_setting(
        "push.communication.threads",
        1,
        low=1,
        unit="threads",
        why="taken as it is: one loop reads and writes all connections, and nothing waits on it",
    )
    push_min_session_timeout_ms: int = declare_setting(
        "push.min.session.timeout.ms",
        6_000,
        low=100,
        unit="ms",
        why="push consumers with shorter sessions are refused: they are pinged three times a session",
    )
    push_failed_requests_max: int = declare_setting(
        "push.max.failed.requests",
        3,
        low=1,
        unit="requests",
        why="a push consumer is evicted when it answered nothing for so many thirds of its session, and for a session",
    )
    push_rebalance_retries: int = declare_setting(
        "push.rebalance.retries.max",
        4,
        low=0,
        unit="attempts",
        why="after so many more attempts a push group's rebalance is given up, which is told in the log",
    )
    push_rebalance_backoff_ms: int = declare_setting(
        "push.rebalance.backoff.ms", 2_000, low=1, unit="ms", why="pause before another attempt at a rebalance"
    )
    push_rebalance: str = declare_setting(
        "push.rebalance",
        "changed",
        choices=("changed", "all"),
        why="which members of a push group a rebalance stops: those who gain or lose, or all, as the design has it",
    )
    push_assignor: str = declare_setting(
        "push.assignor", "sticky", choices=("sticky", "range"), why="how partitions of push groups are divided"
    )

    @property
    def offsets_retention_ms(self) -> int:
        """How long offsets are kept, in ms."""
        return self.offsets_retention_minutes * MINUTE_MS
