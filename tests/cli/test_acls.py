"""`kohort acls` against our broker: the same rules as Kafka's command makes, previews before it removes, errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.running import Kohort, Said

from kohort import Broker
from kohort.cli.app import COMMON_OPTIONS, run
from kohort.cli.common import Common
from kohort.cli.output import NAMES

_names = itertools.count(1)
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with Broker(tmp_path_factory.mktemp("acls"), settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic() -> str:
    return f"orders-{next(_names)}"


def rules(said: Said) -> set[tuple[str, ...]]:
    columns = ("permission", "principal", "host", "operation", "resource_type", "resource", "pattern")
    return {tuple(row[column] for column in columns) for row in json.loads(said.out)}


def test_rules_are_added_listed_and_removed(kohort: Kohort, topic: str) -> None:
    added = kohort("acls", "add", "--allow-principal", "User:zoe", "--operation", "read", "--topic", topic, "--json")
    assert added.code == 0
    read = ("ALLOW", "User:zoe", "*", "READ", "TOPIC", topic, "LITERAL")
    assert rules(added) == rules(kohort("acls", "list", "--topic", topic, "--json")) == {read}
    more = ("--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--topic", topic[:6])
    assert kohort("acls", "add", *more, "--resource-pattern-type", "prefixed").code == 0
    denied = ("DENY", "User:*", "10.0.0.1", "ALL", "TOPIC", topic[:6], "PREFIXED")
    applying = kohort("acls", "list", "--topic", topic, "--resource-pattern-type", "match", "--json")
    assert {read, denied} <= rules(applying)
    assert rules(kohort("acls", "list", "--topic", topic, "--principal", "User:*", "--json")) == set()
    preview = kohort("acls", "remove", "--topic", topic)
    assert preview.code == 0
    assert "--execute" in preview.err
    assert rules(kohort("acls", "list", "--topic", topic, "--json")) == {read}
    assert kohort("acls", "remove", "--topic", topic, "--execute").code == 0
    assert rules(kohort("acls", "list", "--topic", topic, "--json")) == set()
    gone = kohort("acls", "remove", *more, "--resource-pattern-type", "prefixed", "--execute", "--json")
    assert rules(gone) == {denied}
    assert json.loads(gone.out)[0]["done"] is True


def test_producers_and_consumers_get_what_kafkas_command_gives(kohort: Kohort, topic: str) -> None:
    """tests/peers/test_acls_alike.py has Kafka's own command."""
    who = ("--allow-principal", "User:zoe", "--topic", topic)
    produced = kohort("acls", "add", *who, "--producer", "--transactional-id", topic, "--idempotent", "--json")
    assert {(row["operation"], row["resource_type"]) for row in json.loads(produced.out)} == {
        ("WRITE", "TOPIC"),
        ("DESCRIBE", "TOPIC"),
        ("CREATE", "TOPIC"),
        ("WRITE", "TRANSACTIONAL_ID"),
        ("DESCRIBE", "TRANSACTIONAL_ID"),
        ("IDEMPOTENT_WRITE", "CLUSTER"),
    }
    consumed = kohort("acls", "add", *who, "--consumer", "--group", topic, "--json")
    assert {(row["operation"], row["resource_type"]) for row in json.loads(consumed.out)} == {
        ("READ", "TOPIC"),
        ("DESCRIBE", "TOPIC"),
        ("READ", "GROUP"),
    }


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        (("add", "--topic", "t"), "--allow-principal or --deny-principal"),
        (("add", "--allow-principal", "User:a"), "at least one resource"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "red"), "it is one of all, read"),
        (("add", "--allow-host", "h", "--topic", "t"), "--allow-host needs --allow-principal"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--resource-pattern-type", "any"), "literal, prefixed"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--consumer"), "--consumer needs --group"),
        (("add", "--allow-principal", "User:a", "--group", "g", "--producer"), "--producer needs --topic"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--producer", "--operation", "read"), "leave"),
        (("add", "--allow-principal", "User:a", "--idempotent"), "give that too"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "read", "--idempotent"), "--producer"),
        (("remove", "--execute"), "at least one resource"),
        (("remove", "--topic", "t", "--idempotent", "--execute"), "--producer"),
        (("remove", "--topic", "t", "--operation", "read"), "give --allow-principal"),
    ],
)
def test_wrong_use_says_what_is_missing(kohort: Kohort, args: tuple[str, ...], reported: str) -> None:
    said = kohort("acls", *args)
    assert (said.code, said.out) == (2, "")
    assert reported in said.err


def test_rule_that_the_broker_rejects_is_a_failure(kohort: Kohort, topic: str) -> None:
    said = kohort(
        "acls", "add", "--allow-principal", "zoe", "--allow-principal", "User:zoe", "--topic", topic, "--json"
    )
    assert said.code == 1
    assert "Could not parse principal from `zoe`" in said.err
    assert {row["principal"]: row["done"] for row in json.loads(said.out)} == {"zoe": False, "User:zoe": True}


def test_broker_without_an_authorizer_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(tmp_path / "data") as broker:
        assert run(["acls", "list", "--bootstrap-server", broker.bootstrap_servers]) == 1
    reported = capsys.readouterr().err
    assert "SECURITY_DISABLED" in reported and "authorizer.class.name" in reported


def test_options_of_every_command_are_those_of_common() -> None:
    assert {field.name for field in fields(Common)} == COMMON_OPTIONS


def test_rows_have_names_that_are_written_down(kohort: Kohort, topic: str) -> None:
    added = kohort("acls", "add", "--allow-principal", "User:zoe", "--topic", topic)
    listed = kohort("acls", "list", "--topic", topic, "--json")
    headings = [heading.lower().replace("-", "_") for heading in added.out.splitlines()[0].split()]
    assert set(headings) - {"done"} == set(json.loads(listed.out)[0]) <= set(NAMES)
