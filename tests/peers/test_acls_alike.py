"""Apache Kafka with StandardAuthorizer and our broker refuse the same requests in the same way.

Both have the same rules. Each request is sent with all of its rights, with none, and without each one of them. Clients
are ANONYMOUS on both sides, so their address tells the administrator from the client whose rights change.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kohort import Broker
from kohort.broker.authorization import CLUSTER_NAME, Resource
from kohort.ids import AclOperation, AclPattern, AclPermission
from kohort.wire.discovery import MetadataRequest
from kohort.wire.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from kohort.wire.schema import Struct
from kohort.wire.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.broker.acl_cases import (
    ADMIN_HOST,
    CASES,
    CLIENT_HOST,
    SETTINGS,
    Case,
    Names,
    creation,
    error_codes,
    grant,
    prepare,
    take_over,
)
from tests.broker.raw import RawClient
from tests.peers.alike.harness import Side, differences_of, ready
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable
from tests.support.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.timeout(300)]
_runs = itertools.count(1)
NO_ANSWER = {("DescribeUserScramCredentials", ())}
"""Refusals that Apache Kafka 4.4 does not send, because building the answer fails there."""
CHOSEN = {"member_id", "producer_id", "producer_epoch", "log_dir", "total_bytes", "usable_bytes", "error_message"}
"""Fields whose values each broker chooses for itself."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of Apache Kafka and of our broker, both with an authorizer."""
    try:
        kafka = ApacheKafka(SETTINGS)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    settings = {**SETTINGS, "num.partitions": 4, "offsets.topic.num.partitions": 4}
    settings |= {"group.initial.rebalance.delay.ms": 0, "group.notify.at.once": "off"}
    with kafka, Broker(tmp_path_factory.mktemp("alike"), settings) as ours:
        addresses = kafka.bootstrap_servers, ours.bootstrap_servers
        for address in addresses:
            ready(address)
            with RawClient(address, host=ADMIN_HOST) as admin:
                take_over(admin)
        yield addresses


def answers(address: str, case: Case, names: Names) -> list[tuple[str, Any, str]]:
    """The answers of one side, with each selection of the case's rights."""
    names = Names.of(names.t.removesuffix("-t"))
    side = Side(address, "acls", CLIENT_HOST)
    outcomes = []
    try:
        with RawClient(address, host=ADMIN_HOST) as admin:
            prepare(admin, names)
            for topic, number in names.ids.items():
                side.call(number, f"id of {topic}")
            for rights in selections(case):
                grant(admin, names, rights)
                side.ask(case.make(names), case.version, keep=plain)
                label, answer, reason = side.transcript()[-1]
                outcomes.append((f"{label} with {', '.join(rights) or 'no rights'}", only_of(answer, names), reason))
    finally:
        side.close()
    return outcomes


def selections(case: Case) -> list[tuple[str, ...]]:
    """No rights, all but one, and all unless the answer differs then for another reason."""
    some = [tuple(text for text in case.rights if text != missing) for missing in case.rights]
    creates = case.api == "Metadata" and "TOPIC new" in case.rights[0]
    other = creates or case.api in ("DescribeQuorum", "StreamsGroupHeartbeat")
    chosen = dict.fromkeys([(), *some, *([] if other else [case.rights])])
    return [rights for rights in chosen if (case.api, rights) not in NO_ANSWER]


def plain(value: Any) -> None:
    """Leave out what each broker chooses for itself, and the bytes of records, which have times."""
    for field in value.FIELDS:
        inner = getattr(value, field.name)
        if field.name == "records":
            setattr(value, field.name, b"some" if inner else b"")
        if field.name in CHOSEN:
            setattr(value, field.name, field.fresh_default())
        for entry in inner if isinstance(inner, list) else ():
            if isinstance(entry, Struct):
                plain(entry)


def only_of(answer: Any, names: Names) -> Any:
    """Leave resources of other cases and of the brokers themselves out of lists."""
    if not isinstance(answer, dict):
        return answer
    prefix = names.t.removesuffix("-t")
    lists = {"topics": "name", "groups": "group_id", "transaction_states": "transactional_id"}
    for field, key in lists.items():
        if isinstance(answer.get(field), list):
            answer[field] = [
                entry for entry in answer[field] if not entry.get(key) or str(entry[key]).startswith(f"{prefix}-")
            ]
    return answer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_refuse_and_allow_the_same(case: Case, sides: tuple[str, str]) -> None:
    names = Names.of(f"a{next(_runs)}")
    theirs, ours = (answers(address, case, names) for address in sides)
    differences = differences_of(theirs, ours)
    assert not differences, "\n".join(["", *differences])


# -- the requests for rules themselves


def made(**changed: Any) -> CreateAclsRequest.AclCreation:
    acl = creation(Resource.TOPIC, "made", "127.0.0.9", AclOperation.READ)
    for field, value in changed.items():
        setattr(acl, field, value)
    return acl


CREATIONS = {
    "valid": {},
    "prefixed": {"resource_pattern_type": AclPattern.PREFIXED},
    "wildcard": {"resource_name": "*"},
    "token": {"resource_type": Resource.DELEGATION_TOKEN},
    "another cluster": {"resource_type": Resource.CLUSTER, "resource_name": "mine"},
    "cluster": {"resource_type": Resource.CLUSTER, "resource_name": CLUSTER_NAME},
    "no name": {"resource_name": ""},
    "no name of a cluster": {"resource_type": Resource.CLUSTER, "resource_name": ""},
    "any resource": {"resource_type": 1},
    "any pattern": {"resource_pattern_type": AclPattern.ANY},
    "match": {"resource_pattern_type": AclPattern.MATCH},
    "no type of principal": {"principal": "erin"},
    "no name of principal": {"principal": "User:"},
    "no principal": {"principal": ""},
    "another type of principal": {"principal": "Group:admins"},
    "colons": {"principal": "User:a:b"},
    "no host": {"host": ""},
    "host name": {"host": "localhost"},
    "deny all": {"operation": AclOperation.ALL, "permission_type": AclPermission.DENY},
    "operation of another resource": {"operation": AclOperation.IDEMPOTENT_WRITE},
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", CREATIONS)
def test_both_take_and_reject_the_same_rules(name: str, version: int, sides: tuple[str, str]) -> None:
    outcomes = []
    for address in sides:
        with RawClient(address, host=ADMIN_HOST) as admin:
            asked = CreateAclsRequest(creations=[made(**CREATIONS[name]), made(principal="User:beside")])
            results = [(entry.error_code, entry.error_message) for entry in admin.ask(asked, version).results]
            found = of_host(admin, "127.0.0.9", version)
            outcomes.append((results, found))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": 1},
        {"permission_type": 1},
        {"operation": 99},
        {"permission_type": 0},
        {"resource_type": 77},
        {"permission_type": 9},
        {"resource_pattern_type": 9},
        {"resource_pattern_type": 0},
    ],
    ids=str,
)
def test_both_answer_the_same_for_rules_that_no_version_has(changed: Any, sides: tuple[str, str]) -> None:
    for address in sides:
        with RawClient(address, host=ADMIN_HOST) as admin:
            try:
                answer = repr(admin.ask(CreateAclsRequest(creations=[made(**changed)]), 3))
            except ConnectionResetError:
                answer = "closed"
        if address == sides[0]:
            theirs = answer
    assert answer == theirs


RANGES = {
    "127.0.0.0/8": ["127.0.0.2", "127.0.0.3"],
    "127.0.0.2/32": ["127.0.0.2"],
    "127.0.0.3/31": ["127.0.0.2", "127.0.0.3"],
    "127.0.0.0/31": [],
    "0.0.0.0/0": ["127.0.0.2", "127.0.0.3"],
    "::/0": [],
    **dict.fromkeys(("127.0.0.0/33", "127.0.0/8", "host/8", "127.0.0.0/", "::1/129", "::ffff:127.0.0.0/104")),
}
"""Hosts of rules, and the clients that each lets in; None: it is no range."""


@pytest.mark.parametrize("host", RANGES)
def test_both_let_in_the_same_addresses_of_a_range(host: str, sides: tuple[str, str]) -> None:
    outcomes = []
    for address in sides:
        with RawClient(address, host=ADMIN_HOST) as admin:
            names = Names.of(f"r{next(_runs)}")
            prepare(admin, names)
            rule = made(host=host, resource_name=names.t, operation=AclOperation.DESCRIBE)
            (result,) = admin.ask(CreateAclsRequest(creations=[rule])).results
            text = (result.error_message or "").partition(": ")[0]
            inside = [client for client in ("127.0.0.2", "127.0.0.3") if sees(address, client, names.t)]
            of_host(admin, host, 3)
        outcomes.append((result.error_code, text, inside))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2] == (RANGES[host] or [])


def sees(address: str, client_host: str, topic: str) -> bool:
    """Whether a client at this address may describe a topic; a rule is in force a moment after its answer."""
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with RawClient(address, host=client_host) as client:
        for _ in range(5):
            if client.ask(asked).topics[0].error_code == 0:
                return True
            time.sleep(0.05)
    return False


def of_host(admin: RawClient, host: str, version: int) -> set[tuple[Any, ...]]:
    """Delete the rules of a host; what they were."""
    wanted = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        pattern_type_filter=AclPattern.ANY,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=host,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
    )
    (result,) = admin.ask(DeleteAclsRequest(filters=[wanted]), version).filter_results
    assert result.error_code == 0
    return {
        (
            entry.resource_type,
            entry.resource_name,
            entry.error_message,
            entry.pattern_type,
            entry.principal,
            entry.operation,
            entry.permission_type,
        )
        for entry in result.matching_acls
    }


FILTERS = [
    {},
    *({"resource_name_filter": name} for name in ("foo", "foobar", "*", "f", "")),
    *({"pattern_type_filter": pattern} for pattern in AclPattern),
    *(
        {"resource_name_filter": name, "pattern_type_filter": pattern}
        for name in ("foo", "foobar", "*")
        for pattern in AclPattern
    ),
    {"principal_filter": "User:alice"},
    {"principal_filter": "User:*"},
    {"principal_filter": "alice"},
    {"host_filter": "127.0.0.8"},
    {"operation": AclOperation.ALL},
    {"operation": AclOperation.WRITE},
    {"permission_type": AclPermission.DENY},
    {"resource_type_filter": Resource.GROUP},
    {"resource_type_filter": 99},
    {"pattern_type_filter": 0},
]


def _has_the_last_rule(address: str) -> bool:
    return bool(described(address, {"resource_type_filter": Resource.GROUP})[1])


def test_both_find_the_same_rules(sides: tuple[str, str]) -> None:
    outcomes = []
    for address in sides:
        with RawClient(address, host=ADMIN_HOST) as admin:
            rules = [
                made(resource_name=name, resource_pattern_type=pattern, host="127.0.0.8", principal=principal)
                for name in ("foo", "f", "*")
                for pattern in (AclPattern.LITERAL, AclPattern.PREFIXED)
                for principal in ("User:alice", "User:*")
            ]
            rules.append(made(host="127.0.0.8", operation=AclOperation.ALL, permission_type=AclPermission.DENY))
            rules.append(made(host="127.0.0.8", resource_type=Resource.GROUP))
            assert not error_codes(admin.ask(CreateAclsRequest(creations=rules)))
            until(partial(_has_the_last_rule, address), "the authorizer has the rules")
            found = [described(address, changed) for changed in FILTERS]
            found.append(len(of_host(admin, "127.0.0.8", 3)))
            outcomes.append(found)
    for changed, theirs, ours in zip([*FILTERS, "deleted"], *outcomes, strict=True):
        assert ours == theirs, changed


def described(address: str, changed: dict[str, Any]) -> Any:
    values: dict[str, Any] = {
        "resource_type_filter": Resource.TOPIC,
        "pattern_type_filter": AclPattern.ANY,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermission.ANY,
    }
    with RawClient(address, host=ADMIN_HOST) as admin:
        try:
            answer = admin.ask(DescribeAclsRequest(**values | changed), 3)
        except ConnectionResetError:
            return "closed"
    assert answer.error_code == 0
    return answer.error_message, {
        (resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal, acl.operation)
        for resource in answer.resources
        for acl in resource.acls
        if acl.host == "127.0.0.8"
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type_filter": 99},
        {"pattern_type_filter": 9},
        {"operation": 77},
        {"permission_type": 9},
        {"operation": 0},
        {"resource_name_filter": "none"},
    ],
    ids=str,
)
def test_both_answer_the_same_for_filters_of_deletions(changed: Any, sides: tuple[str, str]) -> None:
    outcomes = []
    for address in sides:
        wanted = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1,
            pattern_type_filter=AclPattern.ANY,
            resource_name_filter=None,
            principal_filter=None,
            host_filter="127.0.0.7",
            operation=AclOperation.ANY,
            permission_type=AclPermission.ANY,
        )
        for field, value in changed.items():
            setattr(wanted, field, value)
        with RawClient(address, host=ADMIN_HOST) as admin:
            assert not error_codes(admin.ask(CreateAclsRequest(creations=[made(host="127.0.0.7")])))
            try:
                outcomes.append(repr(admin.ask(DeleteAclsRequest(filters=[wanted, wanted]), 3)))
            except ConnectionResetError:
                outcomes.append("closed")
    assert outcomes[0] == outcomes[1]


# -- consumer groups: patterns, and topics that a client may not describe


def test_both_let_a_pattern_select_only_topics_that_may_be_described(sides: tuple[str, str]) -> None:
    prefix = f"p{next(_runs)}"
    theirs, ours = (selected_and_described(address, Names.of(prefix)) for address in sides)
    assert ours == theirs
    assert ours[0] == {f"{prefix}-t"}


def selected_and_described(address: str, names: Names) -> list[Any]:
    """The topics that a member's pattern selects, and what describing its group answers with less and less rights."""
    with RawClient(address, host=ADMIN_HOST) as admin, RawClient(address, host=CLIENT_HOST) as client:
        prepare(admin, names)
        grant(admin, names, ["READ GROUP new", "DESCRIBE GROUP new", "DESCRIBE TOPIC t"])
        join = ConsumerGroupHeartbeatRequest(
            group_id=names.new,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            topic_partitions=[],
            subscribed_topic_regex=names.t.removesuffix("-t") + "-.*",
        )
        epoch = client.ask(join).member_epoch
        describe = ConsumerGroupDescribeRequest(group_ids=[names.new])

        def selected() -> set[str]:
            nonlocal epoch
            beat = ConsumerGroupHeartbeatRequest(group_id=names.new, member_id="m", member_epoch=epoch)
            epoch = client.ask(beat).member_epoch
            (group,) = admin.ask(describe, 0).groups
            parts = [part for member in group.members for part in member.target_assignment.topic_partitions]
            return {part.topic_name for part in parts}

        until(lambda: bool(selected()), "topics are selected")
        outcomes: list[Any] = [selected()]
        for rights in (["DESCRIBE GROUP new"], ["DESCRIBE GROUP new", "DESCRIBE TOPIC t"], ["DESCRIBE TOPIC t"]):
            grant(admin, names, rights)
            (group,) = client.ask(describe, 0).groups
            text = group.error_message if "GROUP" in rights[0] else ""
            outcomes.append((group.error_code, text, len(group.members)))
        return outcomes


ACL_COMMAND = "org.apache.kafka.tools.AclCommand"


@pytest.mark.timeout(900)
def test_kafkas_command_shows_adds_and_removes_the_same_rules(sides: tuple[str, str], tmp_path: Path) -> None:
    """kafka-acls.sh, from the administrator's address."""
    tools, outcomes = KafkaTools(tmp_path), []
    words = [
        ("--add", "--allow-principal", "User:zoe", "--producer", "--topic", "acl-orders", "--idempotent"),
        ("--add", "--allow-principal", "User:zoe", "--consumer", "--topic", "acl-orders", "--group", "acl-g"),
        ("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--topic", "acl-", "--operation", "All",
         "--resource-pattern-type", "prefixed"),
        ("--list", "--topic", "acl-orders"),
        ("--list", "--topic", "acl-orders", "--resource-pattern-type", "match"),
        ("--remove", "--force", "--allow-principal", "User:zoe", "--consumer", "--topic", "acl-orders", "--group", "*"),
        ("--remove", "--force", "--topic", "acl-", "--resource-pattern-type", "prefixed"),
        ("--list", "--principal", "User:zoe"),
    ]  # fmt: skip
    for address in sides:
        said = []
        for args in words:
            done = tools.run(ACL_COMMAND, "--bootstrap-server", address, *args)
            said.append((args, done.returncode, sorted(line.strip() for line in done.stdout.splitlines())))
        outcomes.append(said)
    for theirs, ours in zip(*outcomes, strict=True):
        assert ours == theirs
    assert any("User:zoe" in line for _, _, lines in outcomes[1] for line in lines)
