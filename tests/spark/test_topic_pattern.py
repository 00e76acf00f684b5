r"""`subscribePattern` as Spark means it: a pattern of Java's that is found anywhere in a topic's name."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.spark.queries import Place, Run, batch_reader, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.name_patterns import full_match_function
from kohort.spark.options import parse_options
from kohort.spark.topic_pattern import NEVER, glob_hint, parse_topic_pattern

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

PATTERNS = 3_000
NAMES_EACH = 12


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("flights.*", "flights.*"),
        (r"^prefix\.cdc\.orders", r"^prefix\.cdc\.orders"),
        (r"orders-\d+$", "orders-[0-9]+$"),
        (r"\p{Lower}\P{Lower}\pN", r"[a-z][\-.0-9A-Z_][0-9]"),
        (r"\Qa.b|c\E+", rf"a\.b{NEVER}c+"),
        ("[a-z&&[^t]]", "[a-su-z]"),
        (r"[\w&&[^\d_]]{2,}?", "[A-Za-z]{2,}?"),
        ("[]a-c^]", "[a-c]"),
        ("(?i)Ab(?-i)c", "[Aa][Bb]c"),
        ("(a|(?<name>b))", "(?:a|(?:b))"),
        (r"\Aab\z", "^ab$"),
        ("a é", f"a{NEVER}{NEVER}"),
    ],
)
def test_a_pattern_of_java_is_written_anew_for_python_and_re2(pattern: str, text: str) -> None:
    found = parse_topic_pattern(pattern)
    assert (found.text, found.only_here) == (text, ())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*orders", r"there is nothing before \* to repeat"),
        ("fl(", r"there is a \( without its \)"),
        ("fl)", r"there is a \) without its \("),
        ("[a", r"there is a \[ without its \]"),
        ("[b-a]", "b-a is no range of characters"),
        ("a{2}{3}", r"\{ repeats what \{2\} repeats already"),
        ("a{,3}", "that is no {n}"),
        (r"(a)\1", r"the back reference \\1"),
        (r"(?<x>a)\k<x>", r"the back reference \\k"),
        ("(?x)a b", r"\(\?x\) can't be written"),
        ("(ab)*+", r"the possessive \*\+ after a group"),
        ("(?<=a+)b", "look-behind requires fixed-width"),
        (r"\X", r"\\X is no escape that can be written"),
        (r"\p{IsGreek}", r"\\p\{IsGreek\} can't be written"),
        (r"(?i)\p{Lower}", "means something else in each version of Java"),
    ],
)
def test_what_can_not_be_written_anew_is_refused_by_name(pattern: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        parse_topic_pattern(pattern)
    assert "a topic is read whose name contains a match" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("^(?!test).*", "lookahead (?!…)"),
        ("(?<=a)b", "lookbehind (?<=…)"),
        ("(?>ab|a)b", "atomic group (?>…)"),
        ("[a-z]++b", "possessive ++"),
        ("(?:a{500}){3}", "more than 1000 repetitions"),
    ],
)
def test_what_a_coordinator_can_not_look_for_is_for_classic_groups_alone(pattern: str, construct: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribePattern": pattern, "group.id": "g"}
    assert parse_topic_pattern(pattern).only_here == (construct,)
    assert parse_options(given).translated_pattern() == pattern
    for protocol in ("consumer", "push"):
        with pytest.raises(
            InvalidInputError, match=r"which the coordinator of a group can't look for: use group\.prot"
        ):
            parse_options(given | {"group.protocol": protocol})
    alone = {name: value for name, value in given.items() if name != "group.id"}
    assert parse_options(alone | {"group.protocol": "consumer"}).translated_pattern() == pattern


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("Orders_*", "_* repeats '_'; for topics whose names begin with Orders_ write ^Orders_"),
        ("orders*", "s* repeats 's'; for topics whose names begin with orders write ^orders"),
        ("orders.*", None),
        ("[ab]c*", None),
        ("(orders)*", None),
        (r"orders-\d*", None),
    ],
)
def test_a_pattern_like_a_glob_is_explained(pattern: str, words: str | None) -> None:
    said = glob_hint(pattern)
    assert said is None if words is None else said is not None and words in said


def test_kafkas_own_topics_are_never_found() -> None:
    assert not parse_topic_pattern(".*").matches_topic("__consumer_offsets")
    assert parse_topic_pattern(".*").matches_topic("__consumer_offsets2")


class RandomPatterns:
    """Patterns of Java's by chance, and names of topics that they may find."""

    LETTERS = "aabbtTkK019._-xZ"
    ESCAPES = (
        *(rf"\{letter}" for letter in "dDwWsShV.-_te"),
        *(rf"\p{{{name}}}" for name in ("Lower", "L", "Lu", "IsAlphabetic", "Punct", "Alnum", "XDigit", "Pc", "P")),
        *(rf"\P{{{name}}}" for name in ("Upper", "javaLowerCase", "IsLatin", "Pd", "ASCII", "InBasicLatin")),
        *(r"\pN", r"\x41", r"\u0062", r"\x{74}", r"\0141", r"\cA", r"\Qa.\E", r"\Q1\E", r"\Q.b"),
    )
    ANCHORS = ("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G")
    OPENINGS = ("(", "(?:", "(?i:", "(?<n>", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?-i:", "(?s-i:")
    FLAGS = ("(?i)", "(?m)", "(?u)", "(?iu)", "(?-i)", "(?x)", "(?d)")
    COUNTS = ("*", "+", "?", "{2}", "{1,2}", "{0,}", "{3}")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def name(self) -> str:
        return "".join(self.chance.choice(self.LETTERS) for _ in range(self.chance.randint(1, 8)))

    def pattern(self, depth: int = 0) -> str:
        found = ""
        for _ in range(self.chance.randint(1, 4)):
            piece = self._piece(depth)
            if self.chance.random() < 0.35:
                piece += self.chance.choice(self.COUNTS) + self.chance.choice(("", "", "", "?", "+"))
            found += piece + ("|" if self.chance.random() < 0.1 else "")
        return found

    def _piece(self, depth: int) -> str:
        chance, kind = self.chance, self.chance.random()
        if kind < 0.4:
            return chance.choice(self.LETTERS)
        if kind < 0.58:
            return chance.choice((".", *self.ESCAPES))
        if kind < 0.72:
            return self._class()
        if kind < 0.8:
            return chance.choice(self.ANCHORS)
        if kind < 0.94 and depth < 3:
            return f"{chance.choice(self.OPENINGS)}{self.pattern(depth + 1)})"
        return chance.choice((*self.FLAGS, "|", "é", "/", "{", "}", "]", ")", "#", " "))

    def _class(self, depth: int = 0) -> str:
        chance, parts = self.chance, ""
        for _ in range(chance.randint(1, 3)):
            kind = chance.random()
            if kind < 0.35:
                parts += chance.choice(self.LETTERS)
            elif kind < 0.6:
                low, high = sorted(chance.choices("abtzkAKZ09", k=2))
                parts += f"{low}-{high}"
            elif kind < 0.75:
                parts += chance.choice(self.ESCAPES)
            elif kind < 0.85 and depth < 2:
                parts += self._class(depth + 1)
            elif kind < 0.97 and depth < 2:
                side = self._class(depth + 1) if chance.random() < 0.6 else ""
                parts += "&&" + (side or chance.choice(("a-k", "^a", "bt_", r"\w", "k&&[^a]")))
            else:
                parts += chance.choice("&^]-[é")
        return f"[{'^' if chance.random() < 0.3 else ''}{parts}]"


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2])
def test_patterns_find_in_every_engine_what_they_find_in_java(spark: Any, seed: int) -> None:
    """Java's own engine by Spark's `rlike`, which looks for a pattern anywhere; ours in Python; a coordinator's RE2."""
    by_chance, java = RandomPatterns(seed), spark.sparkContext._jvm.java.util.regex.Pattern
    held: dict[str, list[str]] = {}
    for _ in range(PATTERNS):
        pattern = by_chance.pattern()
        try:
            parse_topic_pattern(pattern)
        except InvalidInputError:
            continue
        held[pattern] = [by_chance.name() for _ in range(NAMES_EACH)]
    assert len(held) > PATTERNS / 2
    rows = [(pattern, name) for pattern, names in held.items() if compiles(java, pattern) for name in names]
    frame = spark.createDataFrame(rows, "pattern STRING, name STRING").selectExpr("*", "name RLIKE pattern AS found")
    looked, found = 0, 0
    for row in frame.collect():
        translated = parse_topic_pattern(row.pattern)
        assert bool(translated.search(row.name)) is row.found, (row.pattern, translated.text, row.name)
        if not translated.only_here:
            assert full_match_function(f"(?s).*(?:{translated.text}).*")(row.name) is row.found, (
                row.pattern,
                translated.text,
            )
            looked += 1
        found += row.found
    assert looked > len(rows) / 2 and len(rows) / 10 < found < len(rows) * 9 / 10


def compiles(java: Any, pattern: str) -> bool:
    """Whether Java takes a pattern; a lookbehind without a bound it does not, for one."""
    from py4j.protocol import Py4JJavaError

    try:
        java.compile(pattern)
    except Py4JJavaError:
        return False
    return True


@pytest.mark.parametrize("protocol", [None, "classic", "consumer"])
def test_a_topic_is_read_whose_name_contains_a_match(place: Place, protocol: str | None) -> None:
    """Tested for a query alone, for classic members, and for a coordinator that matches topics itself."""
    place.protocol = protocol or "classic"
    names = {"in": place.make("orders"), "dlq": place.make("orders-dlq"), "out": place.make("Orders")}
    assert len(set(names.values())) == 3
    for at, letter in enumerate(("orders", "orders-dlq", "Orders")):
        place.produce(range(at * 10, at * 10 + 10), letter)
    pattern = rf"\Q{place.name}\E-[a-z&&[^t]]\p{{Lower}}ders"
    given = place.options(subscribe=None, subscribePattern=pattern, **({} if protocol else {"group.id": None}))
    with Run(given) as run:
        assert run.read(20) == list(range(20))
    if protocol is None:
        given["startingOffsets"] = "earliest"
        reader = batch_reader(given)
        assert sorted(values_of(reader, reader.partitions())) == list(range(20))
        return
    wanted = {TopicPartition(place.topic(letter), number) for letter in ("orders", "orders-dlq") for number in (0, 1)}
    found = place.admin.list_consumer_group_offsets(place.group).all()
    assert {tp for tp, offset in found.items() if offset is not None} == wanted
