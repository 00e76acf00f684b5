"""Admission: who is let into a group, and why not.

Every way into a group asks three questions here. The ways are a JoinGroup, a ConsumerGroupHeartbeat, a RegisterConsumer
and a conversion:

- Is the request valid (`join_request_error`, `heartbeat_refusal`, `registration_error`)?
- May the shard have another group (`has_room_for_group`)?
- Has the group a place for the member (`group_full_error`), and do its records fit (`record_size_error`)?

The groups count their members and bytes themselves; the limits and the verdicts are here.

Whether a member may return under its id is up to its protocol. So are the strategies that members need in common.

Imports are a part of admission: groups that an earlier coordinator has kept are looked up when they are first named
here, and imported once.

The import starts when a client joins, commits to or fetches from a group that is not here and was never imported. Until
the earlier coordinator has answered, no client may be told "no offset": the group would start anew and silently skip
data. So the effect `ImportGroupOffsets` asks that coordinator. Meanwhile clients are told to retry
(COORDINATOR_LOAD_IN_PROGRESS), and the event `GroupImported` brings the answer:

| the earlier coordinator | what follows |
|---|---|
| has offsets | they are imported in one append, with an import record that outlives the group |
| has no such group, or no offsets | the group is new here; no record, or any made-up name would leave one |
| has members in the group | refused with NON_EMPTY_GROUP; asked again after a while |
| does not answer | still COORDINATOR_LOAD_IN_PROGRESS; asked again, later each time |

JoinGroup, OffsetCommit and OffsetFetch carry no text. Clients therefore show the text of the code NON_EMPTY_GROUP, "the
group is not empty", and do not retry after it. ConsumerGroupHeartbeat says in words what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.config import GroupConfig
from kohort.groups.effects import ConsumerGroupHeartbeatReply, ImportGroupOffsets, Level
from kohort.groups.events import ConsumerGroupHeartbeat, GroupImported, JoinGroup, RegisterConsumer
from kohort.groups.records import OfferedProtocol
from kohort.groups.step import Step

T = TypeVar("T")
LEAVES: Final = -1
"""The epoch of a heartbeat with which a member leaves."""
LEFT_FOR_A_WHILE: Final = -2
"""The epoch of a heartbeat with which a static member leaves for a while."""


class Refusal(NamedTuple):
    """The error code and message with which a request is refused."""

    error: ErrorCode
    message: str

    def refuse_heartbeat(self, step: Step, event: ConsumerGroupHeartbeat) -> None:
        """Answer a ConsumerGroupHeartbeat with this error code and message."""
        step.reply(event.request, ConsumerGroupHeartbeatReply(self.error, self.message))


# -- May the shard have another group?


def has_room_for_group(config: GroupConfig, groups: int) -> bool:
    """Return whether the shard may create another group, given how many it has (`group.coordinator.max.groups`)."""
    return groups < config.groups_max


# -- Has the group a place, and its records room?


def group_full_error(limit: int, taken: int, *, has_place: bool = False) -> ErrorCode:
    """Return GROUP_MAX_SIZE_REACHED if a group has no place for another member, else NONE.

    Args:
        limit: the most members of the group, `group.max.size` or `group.consumer.max.size`.
        taken: the places that are taken.
        has_place: the member has one of them, or takes over another's.
    """
    return ErrorCode.NONE if has_place or taken < limit else ErrorCode.GROUP_MAX_SIZE_REACHED


def record_size_error(config: GroupConfig, size: int) -> ErrorCode:
    """Return the error for a record of more bytes than `group.record.max.bytes`, else NONE."""
    return ErrorCode.NONE if size <= config.group_record_bytes_max else ErrorCode.GROUP_MAX_SIZE_REACHED


def protocols_size_bytes(protocols: Iterable[OfferedProtocol]) -> int:
    """Return how many bytes a classic member's protocols take in the record of a consumer group's member.

    A classic group stores only the chosen one.
    """
    return sum(len(protocol.metadata) for protocol in protocols)


GIVEN_ID_CHARS_MAX: Final = 1 << 20
"""The most characters of the unused member ids of a group: some 15,000 ids. One may have 8,000 characters."""


class UnusedMemberIds(dict[str, T]):
    """Member ids that a group has given out (KIP-394) and that no JoinGroup has used yet, the oldest first.

    Each is kept for a session timeout, which may be half an hour.
    Change them only with `record_given_id` and `take_given_id`.
    """

    _chars = 0

    def record_given_id(self, member_id: str, value: T) -> None:
        """Record an id that was given to a new member, with the data that `take_given_id` returns."""
        self[member_id] = value
        self._chars += len(member_id)

    def take_given_id(self, member_id: str) -> T | None:
        """Remove an id and return its value; None if it was not given, or was used."""
        value = self.pop(member_id, None)
        if value is not None:
            self._chars -= len(member_id)
        return value

    def oldest_surplus_id(self) -> str | None:
        """Return the oldest unused id when the ids have more than `GIVEN_ID_CHARS_MAX` characters; else None.

        The caller drops it: the client that got it is refused with UNKNOWN_MEMBER_ID and joins anew. Honest clients use
        an id at once.
        """
        return next(iter(self)) if self._chars > GIVEN_ID_CHARS_MAX else None


# -- Is the request valid?


def join_request_error(config: GroupConfig, event: JoinGroup) -> ErrorCode:
    """Return the error of a JoinGroup that every group would refuse, else NONE.

    Such requests have names that no record can hold, or a session timeout outside the configured bounds.
    """
    if not event.group_id or not sizes.names_fit_record(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = (event.new_member_id, event.instance_id, event.client.id, event.protocol_type)
    if not sizes.names_fit_record(*names, *(offer.name for offer in event.protocols)):
        return ErrorCode.INVALID_REQUEST
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def registration_error(config: GroupConfig, event: RegisterConsumer) -> ErrorCode:
    """Return the error of a push consumer's registration that every group would refuse, else NONE."""
    if "push" not in config.rebalance_protocols:
        return ErrorCode.UNSUPPORTED_VERSION
    if not event.group_id or not sizes.names_fit_record(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = (event.member_id, event.client.id, event.regex, *event.topics)
    if not event.member_id or not sizes.names_fit_record(*names):
        return ErrorCode.INVALID_REQUEST
    if not config.push_min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def heartbeat_refusal(config: GroupConfig, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Return why every group would refuse this ConsumerGroupHeartbeat, such as for an empty group id; else None."""
    message = None
    if "consumer" not in config.rebalance_protocols:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, "The consumer protocol is switched off.")
    if (event.member_epoch > 0 or event.member_epoch == LEAVES) and is_blank(event.member_id):
        message = "MemberId can't be empty."
    elif is_blank(event.group_id):
        message = "GroupId can't be empty."
    elif is_blank(event.instance_id):
        message = "InstanceId can't be empty."
    elif is_blank(event.rack_id):
        message = "RackId can't be empty."
    elif event.member_epoch == 0:
        message = joining_heartbeat_fault(event)
    elif event.member_epoch == LEFT_FOR_A_WHILE and event.instance_id is None:
        message = "InstanceId can't be null."
    elif event.member_epoch < LEFT_FOR_A_WHILE:
        message = "MemberEpoch is invalid."
    if message is None:
        message = oversized_heartbeat_reason(config, event)
    if message is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if event.server_assignor is not None and event.server_assignor not in config.consumer_assignors:
        offered = ", ".join(config.consumer_assignors)
        text = f"ServerAssignor {event.server_assignor} is not supported. Supported assignors: {offered}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    return None


def is_blank(name: str | None) -> bool:
    """Return whether a name is present but empty or only white space; None is not blank."""
    return name is not None and not name.strip()


def oversized_heartbeat_reason(config: GroupConfig, event: ConsumerGroupHeartbeat) -> str | None:
    """Return why a name or the subscription in a heartbeat is too large for a record; None if all fit."""
    if not sizes.names_fit_record(event.group_id):
        return f"GroupId can't be longer than {sizes.NAME_BYTES_MAX} bytes."
    names = (event.member_id, event.new_member_id, event.instance_id, event.client.id)
    if not sizes.names_fit_record(*names, event.rack_id, event.subscribed_regex):
        return f"No id, rack or regular expression can be longer than {sizes.NAME_BYTES_MAX} bytes."
    limit = config.group_record_bytes_max
    if event.subscribed_topics and sizes.names_bytes(event.subscribed_topics) > limit:
        return f"The subscription takes more than {limit} bytes (group.record.max.bytes)."
    return None


def joining_heartbeat_fault(event: ConsumerGroupHeartbeat) -> str | None:
    """Return which field of a joining ConsumerGroupHeartbeat is missing or wrong; None if none is."""
    if event.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.subscribed_topics is None and event.subscribed_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


UNDER_WAY_MAX = 1_000
"""Groups of a shard that are looked up at the same time: bounds memory for made-up names. Others retry."""
VERDICTS_MAX = 10_000
"""The most answers of earlier coordinators that are remembered in memory alone; the oldest is forgotten first."""
NOTHING_MS = 5_000
"""How long the answer "nothing to import" is valid, in ms. Clients that were told to retry do so within a second."""
REFUSED_MS = 2_000
"""How long clients are refused before the earlier coordinator is asked again: the members there may have left.

Longer than the retry pauses of clients (a second and a fifth); otherwise they would never see the refusal.
"""
SILENT_MS = 500
"""The delay before a coordinator that gave no answer is asked again; it doubles each time."""
SILENT_MAX_MS = 10_000
"""The longest such delay."""


class MissingGroupVerdict(NamedTuple):
    """The answer to a client that names a group which this coordinator does not have: create it, refuse, or retry.

    Attributes:
        error: NONE: the group may be created; else the error code for the client.
        text: the reason, in words.
        until_ms: when the verdict is forgotten, by the monotonic clock.
        failures: the number of attempts without an answer.
    """

    error: ErrorCode
    text: str = ""
    until_ms: int = 0
    failures: int = 0


PROCEED: Final = MissingGroupVerdict(ErrorCode.NONE)
RETRY_LATER: Final = MissingGroupVerdict(
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The group is being looked up at its earlier coordinator."
)


class GroupImports:
    """The imports of groups from their earlier coordinator, Kafka's own: those under way, and its recent answers.

    Both are soft state: they are lost when the shard is loaded again.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self._verdicts: dict[str, MissingGroupVerdict] = {}

    def stored_verdict(self, group_id: str, now_ms: int) -> MissingGroupVerdict | None:
        """Return the stored verdict on a missing group, from its earlier coordinator's answer; None: none is valid."""
        verdict = self._verdicts.get(group_id)
        return verdict if verdict is not None and now_ms < verdict.until_ms else None

    def failures(self, group_id: str) -> int:
        """Return how many attempts in a row the group's earlier coordinator, Kafka's own, has not answered."""
        verdict = self._verdicts.get(group_id)
        return 0 if verdict is None else verdict.failures

    def store_verdict(self, group_id: str, verdict: MissingGroupVerdict) -> None:
        """Store the verdict on a missing group that follows from its earlier coordinator's answer."""
        self._verdicts.pop(group_id, None)
        self._verdicts[group_id] = verdict
        if len(self._verdicts) > VERDICTS_MAX:
            del self._verdicts[next(iter(self._verdicts))]

    def forget_verdict(self, group_id: str) -> None:
        """Forget the verdict on a missing group, because the group exists here now."""
        self._verdicts.pop(group_id, None)

    def verdict_or_import(self, step: Step, group_id: str) -> MissingGroupVerdict:
        """Return the verdict on a missing group: create it, refuse, or retry while its import is under way.

        Without a valid verdict, start an import from the group's earlier coordinator, Kafka's own.
        """
        verdict = self.stored_verdict(group_id, step.now.mono_ms)
        if verdict is not None:
            return verdict
        if group_id not in self.under_way and len(self.under_way) < UNDER_WAY_MAX:
            ticket = self.under_way[group_id] = step.next_task_number()
            step.begin_task(ImportGroupOffsets(group_id, ticket))
        return RETRY_LATER

    def store_refusal(self, step: Step, event: GroupImported) -> None:
        """Store the verdict on a group that is not imported: there was nothing to import, a refusal, or no answer."""
        now_ms = step.now.mono_ms
        if event.error is ErrorCode.NONE:
            self.store_verdict(event.group_id, MissingGroupVerdict(ErrorCode.NONE, "", now_ms + NOTHING_MS))
        elif event.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            failures = self.failures(event.group_id)
            wait_ms = min(SILENT_MS << min(failures, 10), SILENT_MAX_MS)
            self.store_verdict(
                event.group_id, MissingGroupVerdict(event.error, event.text, now_ms + wait_ms, failures + 1)
            )
            if failures == 0:
                text = f"not served until its earlier coordinator answers: {event.text}"
                step.log(event.group_id, text, Level.WARNING)
        else:
            self.store_verdict(event.group_id, MissingGroupVerdict(event.error, event.text, now_ms + REFUSED_MS))
            step.log(
                event.group_id,
                f"refused, its earlier coordinator's offsets can't be imported: {event.text}",
                Level.WARNING,
            )
