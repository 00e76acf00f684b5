"""Apache Kafka with StandardAuthorizer and our broker refuse the same requests in the same way.

Both have the same rules. Each request is sent with all of its rights, with none, and without each one of them. Clients
are ANONYMOUS on both sides, so their address tells the administrator from the client whose rights change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Broker
from kohort.wire.schema import Struct
from tests.broker.acl_cases import ADMIN_HOST, CASES, CLIENT_HOST, SETTINGS, Case, Names, grant, prepare, take_over
from tests.broker.raw import RawClient
from tests.peers.alike.harness import Side, ready, told_apart
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.timeout(300)]
_runs = itertools.count(1)
NO_ANSWER = {("DescribeUserScramCredentials", ())}
"""Refusals that Apache Kafka 4.4 does not send, because building the answer fails there."""
CHOSEN = {"member_id", "producer_id", "producer_epoch", "log_dir", "total_bytes", "usable_bytes", "error_message"}
"""What each broker chooses for itself."""


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
    """What one side answers with each selection of the case's rights."""
    names = Names.of(names.t.removesuffix("-t"))
    side = Side(address, "acls", CLIENT_HOST)
    told = []
    try:
        with RawClient(address, host=ADMIN_HOST) as admin:
            prepare(admin, names)
            for topic, number in names.ids.items():
                side.call(number, f"id of {topic}")
            for rights in selections(case):
                grant(admin, names, rights)
                side.ask(case.make(names), case.version, keep=plain)
                label, answer, reason = side.transcript()[-1]
                told.append((f"{label} with {', '.join(rights) or 'no rights'}", only_of(answer, names), reason))
    finally:
        side.close()
    return told


def selections(case: Case) -> list[tuple[str, ...]]:
    """No rights, all but one, and all unless the answer differs then for another reason."""
    some = [tuple(text for text in case.rights if text != missing) for missing in case.rights]
    creates = case.api == "Metadata" and "TOPIC new" in case.rights[0]
    chosen = dict.fromkeys([(), *some, *([] if creates or case.api == "DescribeQuorum" else [case.rights])])
    return [rights for rights in chosen if (case.api, rights) not in NO_ANSWER]


def plain(value: Any) -> None:
    """Leave out what each broker chooses for itself, and the bytes of records, which have times."""
    for field in value.FIELDS:
        inner = getattr(value, field.name)
        if field.name == "records":
            setattr(value, field.name, b"some" if inner else b"")
        if field.name in CHOSEN:
            setattr(value, field.name, field.fresh_default())
        for each in inner if isinstance(inner, list) else ():
            if isinstance(each, Struct):
                plain(each)


def only_of(answer: Any, names: Names) -> Any:
    """Leave resources of other cases and of the brokers themselves out of lists."""
    if not isinstance(answer, dict):
        return answer
    prefix = names.t.removesuffix("-t")
    lists = {"topics": "name", "groups": "group_id", "transaction_states": "transactional_id"}
    for field, key in lists.items():
        if isinstance(answer.get(field), list):
            answer[field] = [
                each for each in answer[field] if not each.get(key) or str(each[key]).startswith(f"{prefix}-")
            ]
    return answer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_refuse_and_allow_the_same(case: Case, sides: tuple[str, str]) -> None:
    names = Names.of(f"a{next(_runs)}")
    theirs, ours = (answers(address, case, names) for address in sides)
    differences = told_apart(theirs, ours)
    assert not differences, "\n".join(["", *differences])
