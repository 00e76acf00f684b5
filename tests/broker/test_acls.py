"""ACLs decide as Apache Kafka's StandardAuthorizer does, and survive a restart.

The decisions are those of Kafka's AuthorizerTest and StandardAuthorizerTest.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from kohort.broker.acls import AclIndex, AclRule, AclRuleFilter, normalized_address
from kohort.broker.api.acls import check_new_acl_rule
from kohort.broker.authorization import CallerCopy, Resource, StandardAuthorizer
from kohort.broker.config.acl_store import FILE, RULES_MAX, AclStore
from kohort.broker.security.principals import ANYONE, Principal
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError
from kohort.ids import AclOperation, AclPattern, AclPermission

ALICE = "User:alice"
HERE, ELSEWHERE = "192.168.0.1", "192.168.0.2"
OPERATIONS = [*AclOperation][2:]


def rule(
    operation: AclOperation,
    principal: str = ALICE,
    host: str = "*",
    *,
    name: str = "foo",
    deny: bool = False,
    prefix: bool = False,
    kind: Resource = Resource.TOPIC,
) -> AclRule:
    pattern = AclPattern.PREFIXED if prefix else AclPattern.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    return AclRule(kind, name, pattern, principal, host, operation, permission)


def may(index: AclIndex, operation: AclOperation, name: str = "foo", principal: str = ALICE, host: str = HERE) -> bool:
    return index.is_allowed(principal, host, operation, (Resource.TOPIC, name), False)


READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


def test_deny_comes_before_allow_whatever_rule_is_more_precise() -> None:
    index = AclIndex([rule(AclOperation.ALL), rule(READ, host=HERE), rule(READ, "User:*", deny=True)])
    assert not may(index, READ)
    assert may(index, WRITE)


@pytest.mark.parametrize(
    "denied",
    [rule(READ, deny=True), rule(READ, name="*", deny=True), rule(READ, name="f", prefix=True, deny=True)],
    ids=["literal", "wildcard", "prefix"],
)
@pytest.mark.parametrize(
    "allowing",
    [rule(READ), rule(READ, name="*"), rule(READ, name="fo", prefix=True), rule(AclOperation.ALL)],
    ids=["literal", "wildcard", "prefix", "all"],
)
def test_deny_counts_in_every_combination_of_patterns(denied: AclRule, allowing: AclRule) -> None:
    index = AclIndex([allowing])
    assert may(index, READ)
    index.add_rules([denied])
    assert not may(index, READ)
    index.remove_rules([denied])
    assert may(index, READ)


@pytest.mark.parametrize(
    ("prefix", "name", "applies"),
    [
        ("foo", "foo", True),
        ("foo", "foobar", True),
        ("foo", "fo", False),
        ("foo", "bar", False),
        ("f", "foo", True),
        ("*", "foo", False),
        ("*", "*foo", True),
    ],
)
def test_prefix_applies_to_names_that_begin_with_it(prefix: str, name: str, applies: bool) -> None:
    assert may(AclIndex([rule(READ, name=prefix, prefix=True)]), READ, name) is applies


def test_literal_rule_applies_to_no_longer_name() -> None:
    index = AclIndex([rule(READ, name="foob")])
    assert not may(index, READ, "foobar")
    assert not may(index, READ, "foo")
    assert may(index, READ, "foob")


@pytest.mark.parametrize("implied", [DESCRIBE, AclOperation.DESCRIBE_CONFIGS])
@pytest.mark.parametrize("given", OPERATIONS)
def test_operations_imply_what_kafka_says(given: AclOperation, implied: AclOperation) -> None:
    implying = {
        DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER", "DESCRIBE", "ALL"},
        AclOperation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "ALL"},
    }[implied]
    assert may(AclIndex([rule(given)]), implied) is (given.name in implying)
    denied = AclIndex([rule(AclOperation.ALL), rule(given, deny=True)])
    assert may(denied, implied) is (given not in (implied, AclOperation.ALL)), "a denied operation denies no other"


@pytest.mark.parametrize(
    ("principal", "host", "applies"),
    [
        (ALICE, "*", True),
        ("User:*", "*", True),
        ("User:bob", "*", False),
        ("Group:*", "*", False),
        ("Group:alice", "*", False),
        (ALICE, HERE, True),
        (ALICE, ELSEWHERE, False),
        ("User:*", HERE, True),
    ],
)
def test_rule_applies_to_principal_and_host(principal: str, host: str, applies: bool) -> None:
    assert may(AclIndex([rule(READ, principal, host)]), READ) is applies


def test_addresses_are_compared_in_one_form() -> None:
    assert normalized_address("0:0:0:0:0:0:0:1") == normalized_address("::1")
    assert normalized_address("::ffff:10.0.0.1") == "10.0.0.1"
    index = AclIndex([rule(READ, host="0:0:0:0:0:0:0:1")])
    assert may(index, READ, host="::1")
    assert not may(index, READ, host="::2")


@pytest.mark.parametrize(
    ("host", "inside", "outside"),
    [
        ("192.168.0.0/24", [HERE, "192.168.0.0", "192.168.0.255", "::ffff:192.168.0.1"], ["192.168.1.1", "::1", ""]),
        ("192.168.0.77/24", [HERE], ["192.168.1.1"]),
        ("192.168.000.001/32", [HERE], [ELSEWHERE]),
        ("0.0.0.0/0", [HERE, "10.0.0.1"], ["2001:db8::1"]),
        ("2001:db8::/32", ["2001:DB8:0:0:0:0:0:1", "2001:db8:ffff::"], ["2001:db9::1", HERE]),
        ("[::1]/128", ["::1"], ["::2"]),
        ("::/0", ["::1"], [HERE]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_range_of_addresses_applies_to_those_in_it(host: str, inside: list[str], outside: list[str]) -> None:
    index = AclIndex([rule(READ, host=host)])
    assert [address for address in (*inside, *outside) if may(index, READ, host=address)] == inside
    denying = AclIndex([rule(READ), rule(READ, host=host, deny=True)])
    assert [address for address in (*inside, *outside) if may(denying, READ, host=address)] == outside
    assert index.is_allowed_on_any(ALICE, inside[0], READ, Resource.TOPIC)
    assert not index.is_allowed_on_any(ALICE, outside[0], READ, Resource.TOPIC)
    index.remove_rules([rule(READ, host=host)])
    assert not index.is_allowed_on_any(ALICE, inside[0], READ, Resource.TOPIC)


BAD_RANGES = [
    "10.0.0.0/33",
    "10.0.0.0/",
    "10.0.0/8",
    "256.0.0.0/8",
    " 10.0.0.0/8",
    "10.0.0.0/8/8",
    "/8",
    "host/8",
    "2001:db8::/129",
    "2001:db8:/32",
    "::ffff:10.0.0.0/104",
    "g::/8",
]


@pytest.mark.parametrize("host", BAD_RANGES)
def test_a_host_that_is_no_range_is_rejected_and_applies_to_no_one(host: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(f"Invalid CIDR notation '{host}': ")):
        check_new_acl_rule(rule(READ, host=host))
    assert not may(AclIndex([rule(READ, host=host)]), READ, host="10.0.0.1")


@pytest.mark.parametrize("default", [True, False])
def test_default_counts_only_for_resources_that_no_rule_names(default: bool) -> None:
    index = AclIndex([rule(READ, "User:bob"), rule(READ, "User:bob", name="pre", prefix=True)])
    for name, decision in {"foo": False, "prefix": False, "other": default}.items():
        assert index.is_allowed(ALICE, HERE, READ, (Resource.TOPIC, name), default) is decision
    assert index.is_allowed(ALICE, HERE, READ, (Resource.GROUP, "foo"), default) is default
    index.add_rules([rule(READ, "User:bob", name="*")])
    assert not index.is_allowed(ALICE, HERE, READ, (Resource.TOPIC, "other"), default)


@pytest.mark.parametrize(
    ("rules", "some"),
    [
        ([], False),
        ([rule(WRITE, name="sb1")], True),
        ([rule(READ, name="sb1")], False),
        ([rule(WRITE, name="sb1", host=ELSEWHERE)], False),
        ([rule(WRITE, name="sb1"), rule(WRITE, "User:*", name="sb1", deny=True)], False),
        ([rule(WRITE, name="sb1"), rule(WRITE, name="sb", prefix=True, deny=True)], False),
        ([rule(WRITE, name="sb", prefix=True), rule(WRITE, name="sb1", prefix=True, deny=True)], True),
        ([rule(WRITE, name="sb", prefix=True), rule(WRITE, name="sb", deny=True)], True),
        ([rule(WRITE, name="sb1"), rule(WRITE, name="*", deny=True)], False),
        ([rule(WRITE, name="*"), rule(WRITE, name="sb1", deny=True)], True),
        ([rule(AclOperation.ALL, name="sb1")], True),
        ([rule(WRITE, name="g", kind=Resource.GROUP)], False),
    ],
)
def test_right_to_any_resource_of_a_kind(rules: list[AclRule], some: bool) -> None:
    authorizer = StandardAuthorizer(AclIndex(rules))
    assert (
        authorizer.allows_on_any(CallerCopy(Principal("User", "alice"), HERE, None, "X"), WRITE, Resource.TOPIC) is some
    )


def test_super_user_may_do_everything_even_what_is_denied() -> None:
    index = AclIndex([rule(AclOperation.ALL, "User:*", name="*", deny=True)])
    authorizer = StandardAuthorizer(index, ["User:admin"])
    for name, decision in {"admin": True, "alice": False}.items():
        caller = CallerCopy(Principal("User", name), HERE, None, "X")
        assert authorizer.allows(caller, READ, Resource.TOPIC, "foo") is decision
        assert authorizer.allows_on_any(caller, READ, Resource.TOPIC) is decision


def test_changed_rule_counts_at_the_next_decision_and_refusals_are_reported() -> None:
    index, reported = AclIndex(), []
    authorizer = StandardAuthorizer(index, on_refused=lambda *refusal: reported.append(refusal))
    caller = CallerCopy(Principal("User", "alice"), HERE, "c", "Fetch")
    versions = []
    for change, decision in ((index.add_rules, True), (index.remove_rules, False), (index.add_rules, True)):
        change([rule(READ)])
        versions.append(authorizer.version)
        assert authorizer.allows(caller, READ, Resource.TOPIC, "foo") is decision
        assert authorizer.allows(caller, READ, Resource.TOPIC, "foo") is decision
    assert len(set(versions)) == 3
    assert reported == [(caller, READ, Resource.TOPIC, "foo")] * 2
    assert not authorizer.allows(caller, WRITE, Resource.TOPIC, "foo", audited=False)
    assert len(reported) == 2


def test_decisions_for_invented_names_take_bounded_memory() -> None:
    authorizer = StandardAuthorizer(AclIndex())
    caller = CallerCopy(ANYONE, HERE, None, "Metadata")
    for number in range(25_000):
        assert not authorizer.allows(caller, READ, Resource.TOPIC, f"t{number}")
    assert not authorizer.allows(caller, READ, Resource.TOPIC, "t" * 30_000)
    assert len(authorizer._decisions) <= 10_000
    assert max(len(str(key[-1])) for key in authorizer._decisions) < 300


# -- filters


LITERAL_FOO, PREFIX_FOO, WILDCARD = rule(READ), rule(READ, prefix=True), rule(READ, name="*")
OTHER = rule(WRITE, "User:bob", HERE, name="bar", deny=True)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, [LITERAL_FOO, PREFIX_FOO, WILDCARD, OTHER]),
        ({"name": "foo", "pattern": AclPattern.ANY}, [LITERAL_FOO, PREFIX_FOO]),
        ({"name": "foo", "pattern": AclPattern.LITERAL}, [LITERAL_FOO]),
        ({"name": "foo", "pattern": AclPattern.PREFIXED}, [PREFIX_FOO]),
        ({"name": "foo", "pattern": AclPattern.MATCH}, [LITERAL_FOO, PREFIX_FOO, WILDCARD]),
        ({"name": "foobar", "pattern": AclPattern.MATCH}, [PREFIX_FOO, WILDCARD]),
        ({"name": "*", "pattern": AclPattern.MATCH}, [WILDCARD]),
        ({"name": "*", "pattern": AclPattern.LITERAL}, [WILDCARD]),
        ({"pattern": AclPattern.PREFIXED}, [PREFIX_FOO]),
        ({"resource_type": Resource.GROUP}, []),
        ({"principal": "User:bob"}, [OTHER]),
        ({"principal": "User:*"}, []),
        ({"host": HERE}, [OTHER]),
        ({"host": "*"}, [LITERAL_FOO, PREFIX_FOO, WILDCARD]),
        ({"operation": WRITE}, [OTHER]),
        ({"operation": AclOperation.ALL}, []),
        ({"permission": AclPermission.DENY}, [OTHER]),
    ],
)
def test_filter_selects_rules(changed: dict[str, Any], found: list[AclRule]) -> None:
    index = AclIndex([LITERAL_FOO, PREFIX_FOO, WILDCARD, OTHER])
    everything: dict[str, Any] = {
        "resource_type": 1,
        "name": None,
        "pattern": AclPattern.ANY,
        "principal": None,
        "host": None,
        "operation": AclOperation.ANY,
        "permission": AclPermission.ANY,
    }
    assert index.matching_rules(AclRuleFilter(**everything | changed)) == found


# -- the store


def test_store_keeps_rules_over_a_restart_and_only_its_owner_can_read_them(tmp_path: Path) -> None:
    store = AclStore(tmp_path)
    assert store.change_rules([LITERAL_FOO, OTHER, LITERAL_FOO], []) == [LITERAL_FOO, OTHER]
    assert store.change_rules([OTHER], [LITERAL_FOO]) == []
    assert list(AclStore(tmp_path).index) == [OTHER]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_store_that_can_not_write_changes_nothing(tmp_path: Path) -> None:
    store = AclStore(tmp_path)
    store.change_rules([OTHER], [])
    (tmp_path / f"{FILE}.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        store.change_rules([LITERAL_FOO], [OTHER])
    assert list(store.index) == list(AclStore(tmp_path).index) == [OTHER]


def test_store_has_a_bound_and_says_so(tmp_path: Path) -> None:
    store = AclStore(tmp_path)
    store.change_rules([rule(READ, name=f"t{number}") for number in range(RULES_MAX)], [])
    with pytest.raises(KafkaError, match="at most 10000") as full:
        store.change_rules([OTHER], [])
    assert full.value.code is ErrorCode.POLICY_VIOLATION
    assert len(store.index) == RULES_MAX
    store.change_rules([OTHER], [rule(READ, name="t0")])
    with pytest.raises(KafkaError, match="at most 1000 characters"):
        store.change_rules([rule(READ, name="x" * 1001)], [OTHER])
    assert OTHER in store.index


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"acls": [[1, 2]]}', '{"acls": 7}', '{"acls": [["2", "t", 3, "User:a", "*", 3, 2]]}']
)
def test_damaged_rules_keep_the_broker_from_starting(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(CorruptDataError, match="acls.json"):
        AclStore(tmp_path)


def test_decisions_in_threads_stand_while_rules_change(tmp_path: Path) -> None:
    """Regular expressions are resolved in threads."""
    index = AclIndex([rule(READ, name="keep", prefix=True)])
    wrong: list[str] = []
    ended = threading.Event()

    def decide() -> None:
        while not ended.is_set():
            if not may(index, READ, "keep-1") or may(index, WRITE, "keep-1"):
                wrong.append("keep-1")

    thread = threading.Thread(target=decide)
    thread.start()
    for number in range(2_000):
        changing = [rule(READ, name=f"k{number % 7}", prefix=True), rule(READ, name="keep-2")]
        index.add_rules(changing)
        index.remove_rules(changing)
    ended.set()
    thread.join()
    assert not wrong


def test_file_is_json_with_a_rule_a_line(tmp_path: Path) -> None:
    AclStore(tmp_path).change_rules([LITERAL_FOO, OTHER], [])
    text = (tmp_path / FILE).read_text()
    assert json.loads(text)["acls"] == [list(LITERAL_FOO), list(OTHER)]
    assert len(text.splitlines()) == 4
