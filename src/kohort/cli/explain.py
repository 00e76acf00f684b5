"""`kohort explain`: what an error of the package means, and what to do.

docs/errors.md is written from the same texts (tools/error_docs.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kohort.cli.app import DONE, UsageError
from kohort.cli.output import print_json, print_rows
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for

_REMEDY = "Remedy: "
CODE_REMEDIES: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE: "Retention removed the records, or the topic was made anew. Set "
        "`auto.offset.reset`, or run `kohort groups reset-offsets`.",
        ErrorCode.CORRUPT_MESSAGE: "A compacted topic takes no records without a key. Else seek past the record that "
        "the message names; `kohort log check` examines a data folder.",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`kohort topics list` shows the topics. Run `kohort topics create NAME`, "
        "or let the broker create topics by `auto.create.topics.enable=true`.",
        ErrorCode.LEADER_NOT_AVAILABLE: "It passes within seconds after a topic was created. If it stays, a broker of "
        "the cluster is down.",
        ErrorCode.REQUEST_TIMED_OUT: "Check that a broker runs at the address: `kohort doctor --bootstrap-server "
        "HOST:PORT`. Else raise `timeout_ms`, or `--timeout` of a command.",
        ErrorCode.MESSAGE_TOO_LARGE: "Raise `max.message.bytes` of the topic (`kohort topics alter`) and "
        "`max.request.size` of the producer, or send smaller records.",
        ErrorCode.NETWORK_EXCEPTION: "The broker closed the connection or went away. Its log says why. A TLS listener "
        "closes connections without TLS: check `security.protocol`.",
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "It passes when the coordinator has read its log. Try again.",
        ErrorCode.COORDINATOR_NOT_AVAILABLE: "A cluster whose `__consumer_offsets` can't be created has no "
        "coordinator: check that enough brokers run for `offsets.topic.replication.factor`.",
        ErrorCode.INVALID_TOPIC_EXCEPTION: "A name has 1 to 249 letters, digits, dots, underscores and hyphens. Topics "
        "that begin with two underscores belong to Kafka.",
        ErrorCode.NOT_ENOUGH_REPLICAS: "Start the missing brokers, or lower `min.insync.replicas` of the topic.",
        ErrorCode.ILLEGAL_GENERATION: "The member was too slow, and its partitions moved. Poll again. If it repeats, "
        "raise `max.poll.interval.ms`, or lower `max.poll.records`.",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "All members of a group share an assignor and a protocol. Give them the "
        "same `partition.assignment.strategy`, or use another group.",
        ErrorCode.UNKNOWN_MEMBER_ID: "The member's session ended, or its offsets came too late. Poll again. If it "
        "repeats, raise `session.timeout.ms` and `max.poll.interval.ms`.",
        ErrorCode.INVALID_SESSION_TIMEOUT: "Set `session.timeout.ms` within the broker's "
        "`group.min.session.timeout.ms` and `group.max.session.timeout.ms`.",
        ErrorCode.REBALANCE_IN_PROGRESS: "Poll, and commit again.",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "An administrator adds the right, as in `kohort acls add "
        "--allow-principal User:NAME --consumer --topic TOPIC --group GROUP`, or with `--producer`.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "An administrator adds the right, as in `kohort acls add "
        "--allow-principal User:NAME --operation Read --group GROUP`.",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "An administrator adds the right, as in `kohort acls add "
        "--allow-principal User:NAME --operation Describe --cluster`.",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "An administrator adds the right, as in `kohort acls add "
        "--allow-principal User:NAME --producer --topic TOPIC --transactional-id ID`.",
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Set `sasl.mechanism` to one that the message names.",
        ErrorCode.ILLEGAL_SASL_STATE: "The listener wants another login. Check `security.protocol` and the port.",
        ErrorCode.SASL_AUTHENTICATION_FAILED: "Check user and password, or the certificates and the host's name in "
        "them. A command reads them from the file of `--command-config`.",
        ErrorCode.UNSUPPORTED_VERSION: "The broker is too old for this, or leaves it out: docs/protocol-coverage.md.",
        ErrorCode.TOPIC_ALREADY_EXISTS: "Use the topic as it is, or delete it: `kohort topics delete NAME`.",
        ErrorCode.INVALID_PARTITIONS: "Give at least 1. A topic's partitions can only become more.",
        ErrorCode.INVALID_REPLICATION_FACTOR: "Give at most the number of brokers. An embedded broker has one, and -1 "
        "is the broker's default.",
        ErrorCode.INVALID_CONFIG: "The message names the property. docs/settings.md has all, with their limits.",
        ErrorCode.POLICY_VIOLATION: "The message names the limit. docs/limits.md says why it is there.",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "Records were lost, or their producer was idle for too long. Make a "
        "new producer, and send again what had no answer.",
        ErrorCode.INVALID_PRODUCER_EPOCH: "Another producer has this `transactional.id`, or the transaction took "
        "longer than `transaction.timeout.ms`. Make a new producer.",
        ErrorCode.INVALID_TXN_STATE: "Call `begin_transaction` first, and end each transaction by commit or abort.",
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Lower `transaction.timeout.ms`, or raise the broker's "
        "`transaction.max.timeout.ms`.",
        ErrorCode.CONCURRENT_TRANSACTIONS: "It passes when the previous transaction has ended. Try again.",
        ErrorCode.SECURITY_DISABLED: "Set `authorizer.class.name` of the broker: docs/acls.md.",
        ErrorCode.KAFKA_STORAGE_ERROR: "The broker's log names the file. Check the disk, make room, and restart it.",
        ErrorCode.NON_EMPTY_GROUP: "Stop the group's members: `kohort groups members GROUP` names them.",
        ErrorCode.GROUP_ID_NOT_FOUND: "`kohort groups list` shows the groups. A group exists while it has members or "
        "committed offsets.",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Use gzip, snappy, lz4 or zstd, and a client that reads it.",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "Stop members, or raise the broker's `group.max.size`.",
        ErrorCode.FENCED_INSTANCE_ID: "Two processes have one `group.instance.id`. Give each its own.",
        ErrorCode.UNRELEASED_INSTANCE_ID: "Two processes have one `group.instance.id`, or the earlier one has not left "
        "yet. Wait for its session timeout, or give each its own.",
        ErrorCode.PRODUCER_FENCED: "Two processes have one `transactional.id`. Give each its own.",
        ErrorCode.FENCED_MEMBER_EPOCH: "The member was silent for too long. Poll again: the consumer joins anew.",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that subscribe to the topic first.",
        ErrorCode.INVALID_RECORD: "The message says which record and why. Mend or drop it, and send the others again.",
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: "Send less, or let an administrator raise the quota.",
        ErrorCode.UNSUPPORTED_ASSIGNOR: "Set `group.remote.assignor` to one that the broker has: uniform or range.",
        ErrorCode.UNKNOWN_TOPIC_ID: "The topic was deleted, and perhaps created again. Start the client again.",
        ErrorCode.UNSTABLE_OFFSET_COMMIT: "It passes when the transaction has ended. Try again.",
        ErrorCode.INVALID_REQUEST: "Change what the message names.",
        ErrorCode.RESOURCE_NOT_FOUND: "Check the name or path in the message.",
    }
)
"""The remedies of single codes, where the remedy of the class says less."""


def public_errors() -> list[type[KafkaError]]:
    """Return the classes of errors that callers can catch: the base class first, then by name."""
    import kohort
    import kohort.region
    import kohort.schema_registry.prefix  # has an error of its own

    modules = (kohort, kohort.region)  # another name would import what it comes with, as pandas: seconds
    exported = [getattr(module, name) for module in modules for name in module.__all__ if name.endswith("Error")]
    found = {kind for kind in exported if issubclass(kind, KafkaError)}
    return sorted(found, key=lambda kind: (kind is not KafkaError, kind.__name__))


def cause_and_remedy(kind: type[KafkaError]) -> tuple[str, str]:
    """Return the first paragraph of an error class's docstring, and the paragraph that begins with "Remedy:".

    Raises:
        ValueError: the docstring has no paragraph with a remedy, or several.
    """
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]
    remedies = [part.removeprefix(_REMEDY) for part in paragraphs if part.startswith(_REMEDY)]
    if len(remedies) != 1:
        raise ValueError(f"the docstring of {kind.__name__} has no paragraph that begins with `{_REMEDY}`")
    return _cause(kind), remedies[0][0].upper() + remedies[0][1:]


def _cause(kind: type[KafkaError]) -> str:
    """Return the first paragraph of an error class's docstring, without its source."""
    paragraph = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.partition("Source:")[0].split())


def explain(*names: str, json: bool = False) -> int:
    """Say what an error means and what to do.

    A message ends with the name of its code in brackets, as in [UNKNOWN_TOPIC_OR_PARTITION]. Without a name all classes
    of errors are listed.

    Args:
        names: names or numbers of codes, or classes of Python errors.
        json: print JSON.
    """
    rows = [_explained(name) for name in names] if names else [_class_row(kind) for kind in public_errors()]
    if json:
        print_json(rows)
    elif names:
        print("\n\n".join(map(_paragraph, rows)))
    else:
        print_rows(rows, ("name", "meaning"), as_json=False)
    return DONE


def _explained(name: str) -> dict[str, Any]:
    """Return the output row for an error code or an error class.

    Raises:
        UsageError: there is neither; the message names the nearest.
    """
    from kohort.settings.config import did_you_mean

    word = name.strip("[]").rpartition(".")[2]
    codes = {code.name.lower(): code for code in ErrorCode} | {str(int(code)): code for code in ErrorCode}
    if (code := codes.get(word.lower())) is not None:
        return _code_row(code)
    classes = {kind.__name__.lower(): kind for kind in _every_error()}
    if (kind := classes.get(word.lower())) is not None:
        return _class_row(kind)
    known = [*(code.name for code in ErrorCode), *(kind.__name__ for kind in public_errors())]
    hint = did_you_mean(word, known) or "; `kohort explain` lists the classes of errors"
    raise UsageError(f"there is no error {name!r}{hint}")


def _every_error() -> set[type[KafkaError]]:
    """Return the error classes of all imported modules, also those that are not public and have their base's remedy."""
    public_errors()  # imports them

    def below(kind: type[KafkaError]) -> set[type[KafkaError]]:
        return {kind}.union(*(below(subclass) for subclass in kind.__subclasses__()))

    return {kind for kind in below(KafkaError) if kind.__module__.startswith("kohort.")}


def _code_row(code: ErrorCode) -> dict[str, Any]:
    kind = KafkaError if code is ErrorCode.NONE else type(error_for(code))
    remedy = CODE_REMEDIES.get(code) or cause_and_remedy(kind)[1]
    if code is ErrorCode.NONE:
        remedy = "Nothing is to do."
    return {
        "name": code.name,
        "code": int(code),
        "class": kind.__name__,
        "retry": code.retriable,
        "meaning": code.text,
        "remedy": remedy,
        "page": f"docs/errors.md#{code.name.lower()}",
    }


def _class_row(kind: type[KafkaError]) -> dict[str, Any]:
    documented = next(base for base in kind.__mro__ if _REMEDY in (base.__doc__ or ""))
    return {
        "name": kind.__name__,
        "code": None,
        "class": documented.__name__,
        "retry": issubclass(kind, RetriableError),
        "meaning": _cause(kind),
        "remedy": cause_and_remedy(documented)[1],
        "page": f"docs/errors.md#{documented.__name__.lower()}",
    }


def _paragraph(row: dict[str, Any]) -> str:
    number = "" if row["code"] is None else f" ({row['code']})"
    return "\n".join(
        [
            f"{row['name']}{number}: {row['meaning']}",
            f"What to do: {row['remedy']}",
            f"In Python: {row['class']}. A repetition {'may help' if row['retry'] else 'alone does not help'}.",
            f"In the documentation: {row['page'].removeprefix('docs/')}",
        ]
    )
