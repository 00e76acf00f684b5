"""Kafka's error codes in one table, and the few exceptions that callers of the client see.

An error on the wire is a code (`ErrorCode`). An error that a caller must handle is an exception. Its class says what
the caller can do: retry, stop because of a newer instance, obtain rights, and so on. Every exception carries its
original code, so a handful of classes loses no information.

Source: Kafka 4.4, the Errors enumeration, for numbers, names and which ones may be retried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Self

from kohort.ids import TopicPartition


class ErrorCode(IntEnum):
    """Every error code of Kafka 4.4 under Kafka's own name, whether a retry may help, and what it means.

    An unknown number is no member: use `ErrorCode.of`, which maps it to UNKNOWN_SERVER_ERROR.
    """

    retriable: bool
    text: str

    @property
    def topic_text(self) -> str:
        """The meaning of an error about a whole topic, where `text` may speak of a partition as well."""
        return "this server has no such topic" if self.name == "UNKNOWN_TOPIC_OR_PARTITION" else self.text

    def __new__(cls, value: int, retriable: bool = False, text: str = "") -> Self:
        """Create the member with its two facts."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.retriable = retriable
        member.text = text
        return member

    @classmethod
    def of(cls, number: int) -> ErrorCode:
        """Return the member for a number from the wire; an unknown number is UNKNOWN_SERVER_ERROR."""
        return _BY_NUMBER.get(number, cls.UNKNOWN_SERVER_ERROR)

    UNKNOWN_SERVER_ERROR = -1, False, "the server failed in a way it has no code for"
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset lies outside what the partition holds"
    CORRUPT_MESSAGE = 2, True, "a record failed its checksum, its size check, or lacks the key that compaction needs"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "this server has no such topic or partition"
    INVALID_FETCH_SIZE = 4, False, "the fetch size asked for makes no sense"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker does not hold the partition in the role the request needs"
    REQUEST_TIMED_OUT = 7, True, "the request was not done within its time"
    BROKER_NOT_AVAILABLE = 8, False, "the broker can't be reached"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica asked for can't be reached"
    MESSAGE_TOO_LARGE = 10, False, "a record batch is larger than the server takes"
    STALE_CONTROLLER_EPOCH = 11, False, "the controller has moved to another broker"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of a committed offset is longer than the server takes"
    NETWORK_EXCEPTION = 13, True, "the connection ended before the answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "there is no coordinator at the moment"
    NOT_COORDINATOR = 16, True, "another broker is the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic's name is not allowed, or the operation is not allowed on it"
    RECORD_LIST_TOO_LARGE = 18, False, "the records together are larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer replicas are in sync than a write needs"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "written, but to fewer in-sync replicas than a write needs"
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, False, "the generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the member shares no protocol type or assignor with its group"
    INVALID_GROUP_ID = 24, False, "the group's name is not allowed"
    UNKNOWN_MEMBER_ID = 25, False, "the coordinator does not know this member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is outside the broker's limits"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing: the member must join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the commit is too large for one write"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "no right to use the topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "no right to use the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "no right to act on the cluster"
    INVALID_TIMESTAMP = 32, False, "a record's timestamp is outside what the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the connection's state of authentication"
    UNSUPPORTED_VERSION = 35, False, "the server does not speak this version of the request"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not allowed"
    INVALID_REPLICATION_FACTOR = 38, False, "the replication factor is not allowed, or exceeds the brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the assignment of replicas is not allowed"
    INVALID_CONFIG = 40, False, "a configuration value is not allowed"
    NOT_CONTROLLER = 41, True, "another broker is the controller"
    INVALID_REQUEST = 42, False, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the record format on disk can't do this"
    POLICY_VIOLATION = 44, False, "a policy of the server forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the producer's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the producer's sequence number was used before"
    INVALID_PRODUCER_EPOCH = 47, False, "the producer's epoch is older than the one known"
    INVALID_TXN_STATE = 48, False, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id is not the one of this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout exceeds the broker's limit"
    CONCURRENT_TRANSACTIONS = 51, True, "the previous transaction of this id is not finished yet"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "no right to use the transactional id"
    SECURITY_DISABLED = 54, False, "the server has no authorizer"
    OPERATION_NOT_ATTEMPTED = 55, False, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk failed"
    LOG_DIR_NOT_FOUND = 57, False, "the log directory is not configured"
    SASL_AUTHENTICATION_FAILED = 58, False, "the credentials were refused, or TLS could not be agreed"
    UNKNOWN_PRODUCER_ID = 59, False, "nothing is known of this producer id, perhaps because its records expired"
    REASSIGNMENT_IN_PROGRESS = 60, False, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "the principal is neither owner nor renewer of the token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "delegation tokens may not be requested on this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "no right to the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "the kind of principal is not supported"
    NON_EMPTY_GROUP = 68, False, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, False, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "the fetch session is not known (any more)"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session's epoch is not the expected one"
    LISTENER_NOT_FOUND = 72, True, "the leader has no listener of the name this request came in by"
    TOPIC_DELETION_DISABLED = 73, False, "topics may not be deleted here"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch in the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the requester can't read the compression in use"
    STALE_BROKER_EPOCH = 77, False, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, True, "the leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id just given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader can't be reached"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member with the same instance id has taken over"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no eligible leader can be reached"
    ELECTION_NOT_NEEDED = 84, True, "the partition has the leader it should have"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "a member of the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "a record was refused"
    UNSTABLE_OFFSET_COMMIT = 88, True, "a transaction still has offsets pending for this partition"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "the quota is used up for now"
    PRODUCER_FENCED = 90, False, "a newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, False, "there is no such resource"
    DUPLICATE_RESOURCE = 92, False, "a resource of this name exists"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, False, "sender and receiver disagree on who votes"
    INVALID_UPDATE_VERSION = 95, False, "the version of the update is not allowed"
    FEATURE_UPDATE_FAILED = 96, False, "a feature could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal can't be read"
    SNAPSHOT_NOT_FOUND = 98, False, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "this server has no topic of this id"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "the broker id is in use"
    BROKER_ID_NOT_REGISTERED = 102, False, "the broker id is not registered"
    INCONSISTENT_TOPIC_ID = 103, True, "the topic id is not the one the log has"
    INCONSISTENT_CLUSTER_ID = 104, False, "the cluster id is not this cluster's"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic names and topic ids"
    INELIGIBLE_REPLICA = 107, False, "a proposed in-sync replica is not eligible"
    NEW_LEADER_ELECTED = 108, False, "the partition's leader changed by this very request"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset is in remote storage only"
    FENCED_MEMBER_EPOCH = 110, False, "the coordinator fenced the member: it must give up its partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, False, "a member with this instance id has not left yet"
    UNSUPPORTED_ASSIGNOR = 112, False, "the coordinator does not know the assignor asked for"
    STALE_MEMBER_EPOCH = 113, False, "the member's epoch is behind: retry after its next heartbeat"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request went to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this kind of endpoint is not known"
    UNKNOWN_CONTROLLER_ID = 116, False, "no controller of this id is known"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "the telemetry subscription is outdated"
    TELEMETRY_TOO_LARGE = 118, False, "the telemetry is larger than the broker takes"
    INVALID_REGISTRATION = 119, False, "the controller refused the registration"
    TRANSACTION_ABORTABLE = 120, False, "the transaction must be aborted; the producer may go on after that"
    INVALID_RECORD_STATE = 121, False, "the acknowledged record is not in a state that allows this"
    SHARE_SESSION_NOT_FOUND = 122, True, "the share session is not known"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session's epoch is not the expected one"
    FENCED_STATE_EPOCH = 124, False, "the share coordinator's state epoch is not the expected one"
    INVALID_VOTER_KEY = 125, False, "the voter key is not the receiver's"
    DUPLICATE_VOTER = 126, False, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, False, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression can't be compiled"
    REBOOTSTRAP_REQUIRED = 129, False, "the client's view is outdated: start again from the bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, False, "the topology is not allowed"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the topology's epoch is not allowed"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the topology's epoch is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "no further share session is possible for now"
    GROUP_DELETION_FAILED = 134, False, "the group could not be deleted; the error message of the group says why"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, "the broker could not store the topology's description"
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "no controller is registered under this id"


NO_ERROR: Final = ErrorCode.NONE
"""`ErrorCode.NONE` for code that runs at every request: on Python 3.11 looking up a member costs as much as a call."""
_BY_NUMBER: Final[dict[int, ErrorCode]] = {int(code): code for code in ErrorCode}


class KafkaError(Exception):
    """The base of all exceptions that this package raises deliberately.

    Remedy: read the code's meaning in the table of codes. The brokers' log has more where they refused a request.

    Attributes:
        code: the protocol's error code; UNKNOWN_SERVER_ERROR where the protocol was not involved.
        message: what happened, for a reader.
        after_lost_answer: whether an earlier try of the same change was sent and had no answer. It may have been
            carried out, and this error may be its consequence.
    """

    code: ErrorCode
    message: str
    after_lost_answer: bool = False
    default_code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str = "", code: ErrorCode | None = None) -> None:
        self.code = self.default_code if code is None else code
        self.message = message or self.code.text
        super().__init__(self.message)

    @property
    def name_on_page(self) -> str:
        """The name under which docs/errors.md and `kohort explain` have this error: its code's, else its class's.

        In lower case it is the anchor on that page.
        """
        if self.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
            return self.code.name
        return next((kind.__name__ for kind in type(self).__mro__ if "Remedy: " in (kind.__doc__ or "")), "KafkaError")

    def __str__(self) -> str:
        """Return the message, with the code's name where it says more than the class and the message do."""
        name = f"[{self.code.name}]"
        if self.code is ErrorCode.UNKNOWN_SERVER_ERROR or self.message.endswith(name):
            return self.message
        return f"{self.message} {name}"

    def __reduce__(
        self,
    ) -> tuple[Callable[..., KafkaError], tuple[type[KafkaError], tuple[object, ...], dict[str, Any]]]:
        """Keep all attributes of the error when it crosses processes, independent of its class's constructor.

        Spark carries exceptions between processes.
        """
        return _restored_error, (type(self), self.args, self.__dict__.copy())


def _restored_error(kind: type[KafkaError], args: tuple[object, ...], has: dict[str, Any]) -> KafkaError:
    """Restore an error from another process."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(has)
    return error


class RetriableError(KafkaError):
    """A temporary failure: trying again may succeed without any change by the caller.

    Remedy: try again after a pause. If it does not pass, check the address, the network and the brokers' log.
    """

    default_code = ErrorCode.NETWORK_EXCEPTION


class TimedOutError(RetriableError):
    """The time allowed ran out; whether the operation took effect is unknown.

    Remedy: repeat what may be repeated. Raise `timeout_ms` of the call, or the setting that the message names.
    """

    default_code = ErrorCode.REQUEST_TIMED_OUT


class FencedError(KafkaError):
    """A newer instance took over this identity (member, instance id, producer, leader): stop using it.

    Remedy: close the client. Give each process a `group.instance.id` and `transactional.id` of its own.
    """

    default_code = ErrorCode.FENCED_INSTANCE_ID


class NotAuthorizedError(KafkaError):
    """The credentials were refused, give no right to this, or TLS could not be agreed.

    Remedy: check user, password and certificate. Let an administrator add the right that the message names.
    """

    default_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class CommitFailedError(KafkaError):
    """A refused offset commit: the partitions may belong to another member by now.

    Remedy: poll again, and process what it returns. If it repeats, raise `max.poll.interval.ms` or lower
    `max.poll.records`.
    """

    default_code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidInputError(KafkaError, ValueError):
    """A configuration, argument or request that can't work as given: the caller must change it.

    Remedy: change what the message names. It has the nearest known name or the allowed values.
    """

    default_code = ErrorCode.INVALID_REQUEST


class RecordsRefusedError(InvalidInputError):
    """Refused records of a batch, with which the whole batch was refused. Source: KIP-467.

    Remedy: mend or drop the records that `records` names by index, and send the others again.

    Attributes:
        records: why, by the index in the batch of each record that was refused.
    """

    records: dict[int, str]
    default_code = ErrorCode.INVALID_RECORD

    def __init__(
        self, message: str = "", code: ErrorCode | None = None, records: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        super().__init__(message, code)
        self.records = dict(records)

    def of(self, index: int) -> InvalidInputError:
        """Return the error of the record with this index: its own, or that another record of its batch was refused."""
        if index in self.records:
            return InvalidInputError(self.records[index], self.code)
        return InvalidInputError(f"not written, as other records of its batch were refused: {self.message}", self.code)


class NotFoundError(KafkaError):
    """A named topic, group, member or other object that does not exist.

    Remedy: check the name, and create the object. `kohort topics list` and `kohort groups list` show what there is.
    """

    default_code = ErrorCode.RESOURCE_NOT_FOUND


class OffsetError(KafkaError):
    """A position that is missing or outside the partition's log.

    Remedy: seek to an offset that exists, set `auto.offset.reset`, or use `kohort groups reset-offsets`.

    Attributes:
        partition: the partition of the position; None where the error is of no single partition.
    """

    partition: TopicPartition | None
    default_code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(
        self, message: str = "", code: ErrorCode | None = None, partition: TopicPartition | None = None
    ) -> None:
        super().__init__(message, code)
        self.partition = partition


class CorruptDataError(KafkaError):
    """Damaged bytes: a record, file or message that can't be decoded.

    Remedy: seek past the record that the message names, or restore the file. `kohort log check` examines a data folder.
    """

    default_code = ErrorCode.CORRUPT_MESSAGE


def _classes() -> dict[ErrorCode, type[KafkaError]]:
    """Return the exception class of each code; `error_for` uses RetriableError or KafkaError for the others."""
    table: dict[type[KafkaError], str] = {
        TimedOutError: "REQUEST_TIMED_OUT",
        FencedError: "FENCED_INSTANCE_ID PRODUCER_FENCED INVALID_PRODUCER_EPOCH TRANSACTION_COORDINATOR_FENCED "
        "FENCED_MEMBER_EPOCH STALE_CONTROLLER_EPOCH STALE_BROKER_EPOCH FENCED_STATE_EPOCH UNRELEASED_INSTANCE_ID",
        NotAuthorizedError: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM "
        "ILLEGAL_SASL_STATE DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED "
        "DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        CommitFailedError: "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH",
        InvalidInputError: "INVALID_TOPIC_EXCEPTION INVALID_REQUIRED_ACKS INCONSISTENT_GROUP_PROTOCOL "
        "INVALID_GROUP_ID INVALID_SESSION_TIMEOUT INVALID_TIMESTAMP UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS "
        "INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST "
        "UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION INVALID_TRANSACTION_TIMEOUT NON_EMPTY_GROUP "
        "MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE "
        "UNSUPPORTED_COMPRESSION_TYPE GROUP_SUBSCRIBED_TO_TOPIC UNSUPPORTED_ASSIGNOR INVALID_REGULAR_EXPRESSION "
        "INVALID_RECORD INVALID_FETCH_SIZE TOPIC_DELETION_DISABLED SECURITY_DISABLED DUPLICATE_RESOURCE "
        "INVALID_PRINCIPAL_TYPE UNACCEPTABLE_CREDENTIAL MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE",
        NotFoundError: "UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID GROUP_ID_NOT_FOUND RESOURCE_NOT_FOUND "
        "TRANSACTIONAL_ID_NOT_FOUND LOG_DIR_NOT_FOUND DELEGATION_TOKEN_NOT_FOUND UNKNOWN_CONTROLLER_ID",
        OffsetError: "OFFSET_OUT_OF_RANGE OFFSET_MOVED_TO_TIERED_STORAGE POSITION_OUT_OF_RANGE",
        CorruptDataError: "CORRUPT_MESSAGE",
    }
    return {ErrorCode[name]: kind for kind, names in table.items() for name in names.split()}


_CLASSES: Final[dict[ErrorCode, type[KafkaError]]] = _classes()


def error_for(code: int, message: str = "") -> KafkaError:
    """Return the exception for an error code: its class says what the caller can do.

    UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID become NotFoundError although the protocol lets a client retry them
    while metadata spreads; callers that retry check `code.retriable`.
    """
    known = ErrorCode.of(code)
    if known is ErrorCode.UNKNOWN_SERVER_ERROR and code != known:
        message = f"{message or 'an error this version does not know'} (code {code})"
    kind = _CLASSES.get(known)
    if kind is None:
        kind = RetriableError if known.retriable else KafkaError
    return kind(message, known)
