"""Clients' patterns: RE2's answers, whichever way they are found, within bounds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from kohort import name_patterns
from kohort.errors import ErrorCode, InvalidInputError
from kohort.name_patterns import PATTERN_CHARS_MAX, full_match_function, matching_names

HOSTILE = "a*a*a*a*a*a*b"
NAMES = ("orders", "orders-1", "orders.eu", "ordersXeu", "or", "", "order\ns", "orders\nmore", "ORDERS", "a", "b", "ab")
PIECES = st.sampled_from(["orders", "or", "a", "b", "-1", r"\.", ".*", "|", "^", "$", "(", "(?:", ")", "eu", ".", "+"])


@given(st.lists(PIECES, max_size=8).map("".join))
def test_every_pattern_matches_as_in_re2(pattern: str) -> None:
    try:
        expected = [name for name in NAMES if re2.fullmatch(pattern, name)]
    except re2.error:
        with pytest.raises(InvalidInputError):
            full_match_function(pattern)
        return
    assert matching_names(pattern, NAMES) == expected


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ["orders"]),
        (r"^orders\.eu$", ["orders.eu"]),
        ("orders.*", ["orders", "orders-1", "orders.eu", "ordersXeu"]),
        ("^(a|or)$|", []),
        ("(?:a|or)", ["or", "a"]),
        ("^(a|order).*$", ["orders", "orders-1", "orders.eu", "ordersXeu", "a", "ab"]),
        ("a|^b$|or", ["or", "a", "b"]),
    ],
)
def test_plain_patterns_need_no_re2(pattern: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "load_re2", lambda: None)
    if not found:
        with pytest.raises(InvalidInputError, match="without google-re2"):
            full_match_function(pattern)
        return
    assert matching_names(pattern, NAMES) == found


def test_other_patterns_are_refused_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "load_re2", lambda: None)
    for pattern in (HOSTILE, "order.", "orders.+", "[a-z]+", "(?i)a", r"\d", "a{3}", "a.b", "x?"):
        with pytest.raises(InvalidInputError, match="without google-re2 only names, prefixes") as caught:
            full_match_function(pattern)
        assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_python_engine_never_gets_a_hostile_pattern() -> None:
    assert matching_names(HOSTILE, ["a" * 249]) == []
    assert matching_names("(a*)*b", ["a" * 249]) == []
    assert matching_names("^(([a-z])+.)+[A-Z]([a-z])+$", ["a" * 249]) == []


def test_large_patterns_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=f"longer than {PATTERN_CHARS_MAX} characters"):
        full_match_function("a?" * PATTERN_CHARS_MAX)
    with pytest.raises(InvalidInputError, match="too large"):
        full_match_function(r"(?:\pL*){500}")
    names = "|".join(f"topic-{number}" for number in range(3_000))
    assert len(names) > 30 * PATTERN_CHARS_MAX
    assert matching_names(names, ["topic-2999", "topic-3000"]) == ["topic-2999"]


def test_shape_of_plain_patterns_is_checked_in_linear_time() -> None:
    long = ("a" * 32_000, "a|" * 16_000, "(" + "a.*|" * 8_000, "^" * 32_000, r"\." * 16_000)
    for text in (text + "!" for text in long):
        assert name_patterns._PLAIN.fullmatch(text) is None


def test_a_pattern_that_takes_long_is_given_up_and_refused_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "(?:a{0,100}){10}b"
    monkeypatch.setattr(name_patterns, "MATCH_CPU_S", 0.05)
    looked_at = 0

    def names() -> object:
        nonlocal looked_at
        for looked_at in range(1_000_000):  # noqa: B007 - counted for the test
            yield "a" * 249

    with pytest.raises(InvalidInputError, match=r"took longer than 0\.05 s"):
        matching_names(pattern, names())
    assert looked_at < 100_000
    with pytest.raises(InvalidInputError, match=r"took longer than"):
        full_match_function(pattern)
    name_patterns._slow.clear()


def test_re2_is_loaded_by_the_first_pattern_that_needs_it() -> None:
    code = (
        "import sys; import kohort.broker.run; from kohort.name_patterns import full_match_function;"
        "full_match_function('a.*|b');"
        "assert 're2' not in sys.modules; full_match_function('[ab]'); assert 're2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_re2_keeps_no_more_patterns_than_the_memory_bound_reckons_with() -> None:
    kept = re2._Regexp._make.cache_info().maxsize
    assert kept * name_patterns.PATTERN_MEMORY_BYTES == 64 << 20


def test_errors_name_the_pattern_and_the_reason() -> None:
    with pytest.raises(InvalidInputError, match=re.escape("SubscribedTopicRegex `a(b` is not a valid")):
        full_match_function("a(b")
