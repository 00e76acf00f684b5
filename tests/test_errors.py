"""The table of error codes against kio's, and which exception stands for which code."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from kohort.errors import (
    CommitFailedError,
    ErrorCode,
    FencedError,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    OffsetError,
    RetriableError,
    TimedOutError,
    error_for,
)
from tests.wire.values import FIRST_OF_KAFKA_4_4


def test_numbers_names_and_retries_are_kafkas() -> None:
    theirs = {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}
    ours = {int(code): (code.name, code.retriable) for code in ErrorCode if int(code) < FIRST_OF_KAFKA_4_4}
    assert ours == theirs


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.NOT_COORDINATOR, RetriableError),
        (ErrorCode.REQUEST_TIMED_OUT, TimedOutError),
        (ErrorCode.FENCED_INSTANCE_ID, FencedError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, NotAuthorizedError),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError),
        (ErrorCode.UNSUPPORTED_VERSION, InvalidInputError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NotFoundError),
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetError),
        (ErrorCode.UNKNOWN_SERVER_ERROR, KafkaError),
    ],
)
def test_the_class_says_what_the_caller_can_do(code: ErrorCode, kind: type[KafkaError]) -> None:
    error = error_for(code, "what happened")
    assert type(error) is kind
    assert (error.code, error.message) == (code, "what happened")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, str(again)) == (kind, code, str(error))


def test_every_code_has_a_text_and_an_exception() -> None:
    for code in ErrorCode:
        assert error_for(code).message == code.text
        assert code.text


def test_a_code_from_the_future_keeps_its_number() -> None:
    assert ErrorCode.of(999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "999" in str(error_for(999, "odd"))
