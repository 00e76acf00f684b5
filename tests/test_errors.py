"""The table of error codes against kio's, and which exception stands for which code."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

import kohort
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
from kohort.ids import TopicPartition
from kohort.log.damage import LogDamage
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


MADE_WITH: dict[str, tuple[Any, ...]] = {
    "SaslError": ("wrong password",),
    "TlsError": ("the certificate has expired",),
    "OffsetError": ("gone", ErrorCode.POSITION_OUT_OF_RANGE, TopicPartition("t", 3)),
    "RecordsRefusedError": ("two", ErrorCode.INVALID_RECORD, {1: "too old"}),
    "RowRefusedError": ("null", 4, "key", 17),
    "DamagedError": (LogDamage(Path("t-0", "0.log"), 5, 9, 100, 120, "checksum"), "damaged", ErrorCode.CORRUPT_MESSAGE),
}
"""Errors that are made with more, or with less, than a message and a code."""


def _below(kind: type[KafkaError]) -> set[type[KafkaError]]:
    return {kind}.union(*(_below(below) for below in kind.__subclasses__()))


def test_errors_of_every_class_keep_all_that_they_have_from_one_process_to_another() -> None:
    """Spark carries exceptions between processes: one that does not arrive hides what happened."""
    for module in pkgutil.walk_packages(kohort.__path__, "kohort."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kinds = sorted(
        (kind for kind in _below(KafkaError) if kind.__module__.startswith("kohort.")), key=lambda kind: kind.__name__
    )
    assert len(kinds) > 20 and MADE_WITH.keys() <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        error: Any = kind(*MADE_WITH.get(kind.__name__, ("what happened", ErrorCode.NOT_CONTROLLER)))
        error.add_note("seed 7")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is kind
            assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)
