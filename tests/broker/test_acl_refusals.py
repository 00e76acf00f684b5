"""Every API refuses a client without a right, at the place in its answer where Kafka's clients look for it.

Each case is sent with all of its rights, and without each one of them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pytest

from kohort import Broker
from kohort.broker.authorization import NEEDS, Resource
from kohort.broker.routes import ROUTES
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from tests.broker.acl_cases import (
    CASES,
    CLIENT_HOST,
    SETTINGS,
    Case,
    Names,
    error_codes,
    grant,
    prepare,
    refusals,
    right,
    take_over,
)
from tests.broker.raw import RawClient

_runs = itertools.count(1)
BEFORE = {
    ("CreateDelegationToken", AclOperation.CREATE_TOKENS, Resource.USER),
    ("DescribeDelegationToken", AclOperation.DESCRIBE, Resource.DELEGATION_TOKEN),
    ("DescribeDelegationToken", AclOperation.DESCRIBE_TOKENS, Resource.USER),
}
"""Needs of requests that every client is refused before, because the broker has no delegation tokens."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": 0}
    with Broker(tmp_path_factory.mktemp("guarded"), settings) as broker:
        with RawClient(broker.bootstrap_servers) as admin:
            take_over(admin)
        yield broker.bootstrap_servers


def test_every_need_of_every_api_has_a_case() -> None:
    """Also push frames have: tests/broker/test_authorization.py."""
    names = Names.of("n")
    cases = {(case.api, *right(text, names)[:2]) for case in CASES for text in case.rights}
    needs = {(route.name, need.operation, need.resource) for route in ROUTES.values() for need in NEEDS[route.name]}
    implied = {  # READ and DELETE imply DESCRIBE; a test of its own has groups with members
        ("DeleteTopics", AclOperation.DESCRIBE, Resource.TOPIC),
        ("ConsumerGroupDescribe", AclOperation.DESCRIBE, Resource.TOPIC),
        ("DescribeTransactions", AclOperation.DESCRIBE, Resource.TOPIC),
    }
    assert needs - cases == BEFORE | implied
    assert cases <= needs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_answer_without_rights_does_not_say_what_exists(case: Case, guarded: str) -> None:
    """The answers about resources that exist and about others are the same. Only an id that no topic has is told."""
    there, gone = Names.of(f"e{next(_runs):05}"), Names.of(f"e{next(_runs):05}")
    gone.ids.update({gone.t: uuid.uuid4(), gone.u: uuid.uuid4()})
    with RawClient(guarded) as admin, RawClient(guarded, host=CLIENT_HOST) as client:
        prepare(admin, there)
        grant(admin, there, ())
        answers = [client.ask(case.make(names), case.version) for names in (there, gone)]
    if ErrorCode.UNKNOWN_TOPIC_ID in error_codes(answers[1]):
        assert error_codes(answers[1]) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert not any(there.name(key) in repr(answers[0]) for key in ("t", "u"))
    else:
        texts = [repr(answer).replace(names.t[:-2], "") for answer, names in zip(answers, (there, gone), strict=True)]
        for names in (there, gone):
            for number in names.ids.values():
                texts = [text.replace(str(number), "id") for text in texts]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_missing_right_is_refused_and_all_rights_are_enough(case: Case, guarded: str) -> None:
    names = Names.of(f"c{next(_runs)}")
    with RawClient(guarded) as admin, RawClient(guarded, host=CLIENT_HOST) as client:
        prepare(admin, names)
        for missing in case.rights:
            grant(admin, names, [text for text in case.rights if text != missing])
            answer = client.ask(case.make(names), case.version)
            _, kind, _ = right(missing, names)
            if case.shows and kind.name != "GROUP":
                assert not refusals(answer), "a list is filtered"
            elif not case.shows:
                assert (case.code or kind.refusal_error_code) in refusals(answer)
            if case.shows:
                assert names.name(case.shows) not in repr(answer)
        grant(admin, names, case.rights)
        answer = client.ask(case.make(names), case.version)
        assert not refusals(answer)
        if case.shows:
            assert names.name(case.shows) in repr(answer)
