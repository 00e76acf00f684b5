"""Decisions by the text of an error are found wherever they stand."""

from __future__ import annotations

import pytest
from tools.hygiene import text_decisions

HANDLER = """
def call():
    try:
        work()
    except OSError as error:
        {}
"""


@pytest.mark.parametrize(
    "line",
    [
        "if str(part) in str(error): return",
        "if 'full' in error.message: return",
        "if error.args[0] == 'full': return",
        "if str(error).startswith('full'): return",
        "if re.search('full', str(error)): return",
        "text = str(error).lower(); found = 'full' in text",
    ],
)
def test_a_decision_by_the_text_of_an_error_is_found(line: str) -> None:
    assert text_decisions(HANDLER.format(line)) == [6]
    assert text_decisions(HANDLER.format(f"{line}  # by text: it has nothing else")) == []


@pytest.mark.parametrize(("name", "annotation"), [("why", "KafkaError"), ("failure", "BaseException | None")])
def test_an_error_that_is_given_is_known_by_its_annotation(name: str, annotation: str) -> None:
    assert text_decisions(f"def call({name}: {annotation}):\n    return 'full' in str({name})") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "if error.errno == 28: return",
        "log.warning('failed: %s', error)",
        "raise KafkaError(f'failed: {error}') from error",
        "if error.code in RETRIED: return",
    ],
)
def test_a_decision_by_a_value_passes(line: str) -> None:
    assert text_decisions(HANDLER.format(line)) == []
