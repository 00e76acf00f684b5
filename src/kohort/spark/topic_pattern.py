r"""Java's regular expressions for topic names, as in Spark's `subscribePattern`, in a form for Python and RE2.

Spark reads a topic whose name contains a match (`Matcher.find`). A group's classic members match topics in Python, and
a KIP-848 coordinator in RE2. So a pattern is translated into the language that both share. Topic names consist of
letters, digits, `.`, `_` and `-` (Kafka's `Topic.LEGAL_CHARS`). Each character class is therefore written as the
characters of that set that it has: `\p{Lower}` is `[a-z]`, `[a-z&&[^t]]` is `[a-su-z]`. A construct that can't be
translated exactly is refused by name.

Source: the documentation of `java.util.regex.Pattern`, Java SE 17; unspecified behaviour was observed on a JVM.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kohort.errors import InvalidInputError

Letters = frozenset[str]

NAME_LETTERS: Letters = frozenset(string.ascii_letters + string.digits + "._-")
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
"""Kafka's own topics, which Spark's source leaves out of every pattern. Source: Kafka's `Topic.INTERNAL_TOPICS`."""
RE2_REPETITIONS_MAX = 1_000
"""Most repetitions that RE2 allows. A KIP-848 coordinator matches with RE2, so there a larger pattern is refused."""
REPETITIONS_MAX = 1_000_000
NEVER = r"[^\x00-\x7f]"
"""A pattern that matches nothing in a topic's name."""
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_LETTERS, _DIGITS = _LOWER | _UPPER, frozenset(string.digits)
_WORD = _LETTERS | _DIGITS | {"_"}
_CLASSES: dict[str, Letters] = {"d": _DIGITS, "w": _WORD, "s": frozenset(), "h": frozenset(), "v": frozenset()}
_ANCHORS = {"A": "^", "G": "^", "Z": "$", "z": "$", "b": r"\b", "B": r"\B"}
_CONTROLS = {"a": "\x07", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_POSIX: dict[str, Letters] = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "ASCII": NAME_LETTERS,
    "Alpha": _LETTERS,
    "Digit": _DIGITS,
    "Alnum": _LETTERS | _DIGITS,
    "Punct": frozenset("._-"),
    "Graph": NAME_LETTERS,
    "Print": NAME_LETTERS,
    "Blank": frozenset(),
    "Cntrl": frozenset(),
    "XDigit": frozenset(string.hexdigits),
    "Space": frozenset(),
    "javaLowerCase": _LOWER,
    "javaUpperCase": _UPPER,
    "javaAlphabetic": _LETTERS,
    "javaLetter": _LETTERS,
    "javaDigit": _DIGITS,
    "javaLetterOrDigit": _LETTERS | _DIGITS,
    "javaWhitespace": frozenset(),
    "javaSpaceChar": frozenset(),
    "IsAlphabetic": _LETTERS,
    "IsLetter": _LETTERS,
    "IsDigit": _DIGITS,
    "IsLowercase": _LOWER,
    "IsUppercase": _UPPER,
    "IsPunctuation": frozenset("._-"),
    "IsWhite_Space": frozenset(),
    "IsLatin": _LETTERS,
    "InBasicLatin": NAME_LETTERS,
    "L1": NAME_LETTERS,
    "all": NAME_LETTERS,
    "LC": _LETTERS,
    "LD": _LETTERS | _DIGITS,
}
_CASED = frozenset(("Lower", "Upper", "Lu", "Ll", "Lt")) | {name for name in _POSIX if "per" in name or "ower" in name}
"""Properties that Java's versions read differently when case is ignored."""
_FLAGS = "idmsuU"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern in the language that Python and RE2 share.

    Attributes:
        text: the pattern; it matches a topic whose name contains a match.
        only_here: constructs that RE2 lacks, by name; a coordinator can't match such a pattern.
    """

    text: str
    only_here: tuple[str, ...] = ()

    @property
    def search(self) -> Callable[[str], object]:
        """The function that searches a name for a match."""
        return re.compile(self.text).search

    def matches_topic(self, topic: str) -> bool:
        """Return whether the pattern matches a topic; it never matches Kafka's internal topics."""
        return topic not in INTERNAL_TOPICS and self.search(topic) is not None


@lru_cache(maxsize=1_000)
def parse_topic_pattern(pattern: str) -> TopicPattern:
    """Translate a Java regular expression into the language that Python and RE2 share.

    Raises:
        InvalidInputError: the pattern is invalid, or has a construct that can't be translated.
    """
    parser = _Parser(_without_quotes(pattern))
    try:
        text = parser.parse()
        re.compile(text)
    except (_NotTranslated, re.error) as error:
        raise InvalidInputError(
            f"subscribePattern {pattern!r}: {error}; it is a regular expression of Java's, and a topic is read whose "
            "name contains a match"
        ) from None
    return TopicPattern(text, tuple(sorted(parser.only_here)))


def glob_hint(pattern: str) -> str | None:
    """Return a hint for a pattern that was probably meant as a glob, such as `flights*`; None for any other."""
    star = re.search(r"(?<!\\)([\w-])\*", pattern)
    if star is None or re.search(r"\\Q|\[", pattern):
        return None
    start, repeated = pattern[: star.end() - 1], star[1]
    return (
        f"subscribePattern is a regular expression, in which {repeated}* repeats {repeated!r}; for topics whose names "
        f"begin with {start} write ^{start}"
    )


class _NotTranslated(Exception):
    """An invalid pattern, or one that can't be translated; the text says why."""


def _without_quotes(pattern: str) -> str:
    r"""Return the pattern without `\Q…\E`, as `Pattern.RemoveQEQuoting` does it."""
    found: list[str] = []
    quoted = False
    at = 0
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if quoted and pair == "\\E":
            quoted = False
            at += 2
        elif quoted:
            letter = pattern[at]
            at += 1
            if letter.isascii() and letter.isdigit():
                found.append(f"\\x3{letter}")  # never a part of the escape before it
            else:
                found.append(letter if letter.isalpha() or not letter.isascii() else f"\\{letter}")
        elif pair == "\\Q":
            quoted = True
            at += 2
        else:
            step = 2 if pattern[at] == "\\" else 1
            found.append(pattern[at : at + step])
            at += step
    return "".join(found)


@dataclass(slots=True)
class _PatternPart:
    """A part of the translated pattern.

    Attributes:
        text: the translated text.
        unit: whether a quantifier that follows applies to the whole text, without further parentheses.
        letter: whether the text matches exactly one character.
        repeated: the greatest product of the counts of nested repetitions in it.
    """

    text: str
    unit: bool = True
    letter: bool = False
    repeated: int = 1


class _Parser:
    """A parser that translates a Java regular expression, from beginning to end, into one for Python and RE2."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._flags = ""
        self._names: set[str] = set()
        self.only_here: set[str] = set()

    def parse(self) -> str:
        """Return the translated pattern.

        Raises:
            _NotTranslated: the pattern can't be translated.
        """
        found = self._alternatives()
        if self._at < len(self._pattern):
            raise _NotTranslated("there is a ) without its (")
        if found.repeated > RE2_REPETITIONS_MAX:
            self.only_here.add(f"more than {RE2_REPETITIONS_MAX} repetitions")
        return found.text

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._pattern[at] if at < len(self._pattern) else ""

    def _next_letter(self) -> str:
        letter = self._peek()
        if not letter:
            raise _NotTranslated("it ends too early")
        self._at += 1
        return letter

    def _alternatives(self) -> _PatternPart:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return _PatternPart("|".join(part.text for part in parts), False, False, max(part.repeated for part in parts))

    def _sequence(self) -> _PatternPart:
        parts: list[_PatternPart] = []
        while (letter := self._peek()) and letter not in "|)":
            if letter in "*+?{":
                raise _NotTranslated(f"there is nothing before {letter} to repeat (any letters are .*)")
            piece = self._atom()
            if piece is not None:
                parts.append(self._quantified(piece))
        return _PatternPart(
            "".join(part.text for part in parts), False, False, max((p.repeated for p in parts), default=1)
        )

    def _atom(self) -> _PatternPart | None:
        """Parse the next part without its quantifier; return None for flags, which match nothing."""
        letter = self._next_letter()
        if letter == "(":
            return self._group()
        if letter == "[":
            return _class_piece(self._class(consume=True))
        if letter == ".":
            return _PatternPart(".", letter=True)
        if letter in "^$":
            return _PatternPart(letter, unit=False)
        if letter != "\\":
            return _class_piece(self._single(letter))
        escaped = self._peek()
        if escaped in _ANCHORS and escaped:
            self._at += 1
            if escaped == "b" and self._peek() == "{":
                raise _NotTranslated(r"\b{g} can't be written for other engines")
            return _PatternPart(_ANCHORS[escaped], unit=False)
        term = self._escape()
        return _class_piece(term if isinstance(term, frozenset) else self._single(term))

    def _group(self) -> _PatternPart | None:
        before = self._flags
        opening = "(?:"
        if self._peek() == "?":
            self._at += 1
            kind = self._next_letter()
            if kind == "<" and self._peek() in ("=", "!"):
                kind += self._next_letter()
            if kind in ("=", "!", "<=", "<!", ">"):
                opening = f"(?{kind}"
                name = {"=": "lookahead", "!": "lookahead", ">": "atomic group"}.get(kind, "lookbehind")
                self.only_here.add(f"{name} {opening}…)")
            elif kind == "<":
                self._group_name()
            elif kind != ":":
                self._at -= 1
                if self._take_flags():
                    return None
        inner = self._alternatives()
        if self._peek() != ")":
            raise _NotTranslated("there is a ( without its )")
        self._at += 1
        self._flags = before
        return _PatternPart(f"{opening}{inner.text})", unit=opening == "(?:", repeated=inner.repeated)

    def _group_name(self) -> None:
        name = re.compile(r"([a-zA-Z][a-zA-Z0-9]*)>").match(self._pattern, self._at)
        if name is None:
            raise _NotTranslated("the name of a group is not valid")
        if name[1] in self._names:
            raise _NotTranslated(f"two groups have the name {name[1]}")
        self._names.add(name[1])
        self._at = name.end()

    def _take_flags(self) -> bool:
        """Parse flags up to the next : or ); return True if they apply to the rest of this group."""
        on = True
        while (letter := self._next_letter()) not in ":)":
            if letter == "-" and on:
                on = False
            elif letter not in _FLAGS:
                raise _NotTranslated(f"(?{letter}) can't be written for other engines")
            elif on:
                self._flags += letter
            else:
                self._flags = self._flags.replace(letter, "")
        return letter == ")"

    def _quantified(self, piece: _PatternPart) -> _PatternPart:
        counted = re.compile(r"[*+?]|\{(\d+)(,(\d*))?\}").match(self._pattern, self._at)
        if counted is None:
            if self._peek() == "{":
                raise _NotTranslated("there is a { that is no {n}, {n,} or {n,m}")
            return piece
        self._at = counted.end()
        least = int(counted[1] or 0)
        most = int(counted[3] or least)
        if most < least or most > REPETITIONS_MAX:
            raise _NotTranslated(f"{counted[0]} is no range of repetitions")
        suffix = self._next_letter() if self._peek() in ("?", "+") else ""
        if suffix == "+":
            if not piece.letter:
                raise _NotTranslated(f"the possessive {counted[0]}+ after a group can't be written for other engines")
            self.only_here.add(f"possessive {counted[0]}+")
        if self._peek() in ("*", "+", "?", "{"):
            raise _NotTranslated(f"{self._peek()} repeats what {counted[0]} repeats already")
        text = piece.text if piece.unit else f"(?:{piece.text})"
        return _PatternPart(text + counted[0] + suffix, repeated=piece.repeated * max(1, most))

    def _single(self, letter: str) -> Letters:
        """Return the characters of topic names that a literal character of the pattern matches, by its case flags."""
        if "i" not in self._flags:
            return frozenset(letter) & NAME_LETTERS
        if not letter.isascii() and ("u" in self._flags or "U" in self._flags):
            raise _NotTranslated(f"(?iu) with {letter!r} can't be written for other engines")
        return self._cases(frozenset(letter) & NAME_LETTERS)

    def _cases(self, letters: Letters) -> Letters:
        if "i" not in self._flags:
            return letters
        return letters | {letter.swapcase() for letter in letters}

    def _class(self, *, consume: bool) -> Letters:
        """Parse a character class after its `[`, or the right side of `&&` in one; return the characters it matches.

        With `consume`, the closing `]` is consumed too.
        """
        found: Letters | None = None
        negated = False
        if self._peek() == "^" and self._pattern[self._at - 1 : self._at] == "[":
            self._at += 1
            negated = True
        while True:
            letter = self._peek()
            if not letter:
                raise _NotTranslated("there is a [ without its ]")
            if letter == "[":
                self._at += 1
                found = (found or frozenset()) | self._class(consume=True)
            elif letter == "&" and self._peek(1) == "&":
                self._at += 2
                found = self._intersection(found)
            elif letter == "]" and found is not None:
                self._at += consume
                return NAME_LETTERS - found if negated else found
            else:
                found = (found or frozenset()) | self._range()

    def _intersection(self, left: Letters | None) -> Letters:
        right: Letters | None = None
        while (letter := self._peek()) not in ("]", "&"):
            if not letter:
                raise _NotTranslated("there is a [ without its ]")
            self._at += letter == "["
            right = (right or frozenset()) | self._class(consume=letter == "[")
        if right is None:
            raise _NotTranslated("&& needs a class behind it")
        return right if left is None else left & right

    def _range(self) -> Letters:
        low = self._class_letter()
        if isinstance(low, frozenset):
            return low
        if self._peek() != "-" or self._peek(1) in ("[", "]", ""):
            return self._single(low)
        self._at += 1
        high = self._class_letter()
        if isinstance(high, frozenset) or high < low:
            raise _NotTranslated(f"{low}-{'…' if isinstance(high, frozenset) else high} is no range of characters")
        if "i" in self._flags and ("u" in self._flags or "U" in self._flags) and not high.isascii():
            raise _NotTranslated("(?iu) with characters beyond ASCII can't be written for other engines")
        # Java looks up a name's letter in both cases, and so matches it if either lies in the range.
        return self._cases(frozenset(letter for letter in NAME_LETTERS if low <= letter <= high))

    def _class_letter(self) -> str | Letters:
        letter = self._next_letter()
        if letter != "\\":
            return letter
        if self._peek() in ("R", "X", "b", "A", "B", "G", "Z", "z") and self._peek():
            raise _NotTranslated(f"\\{self._peek()} has no place in a class")
        return self._escape()

    def _escape(self) -> str | Letters:
        """Parse an escape, after its backslash: a character, or a class of characters."""
        letter = self._next_letter()
        if letter in "pP":
            return self._property(letter == "P")
        if letter.lower() in _CLASSES:
            known = _CLASSES[letter.lower()]
            return NAME_LETTERS - known if letter.isupper() else known
        if letter == "R":
            return frozenset()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "0":
            return self._parse_number(r"[0-3][0-7]{0,2}|[0-7]{1,2}", 8)
        if letter == "u":
            return self._parse_number(r"[0-9a-fA-F]{4}", 16)
        if letter == "x":
            braced = re.compile(r"\{([0-9a-fA-F]{1,6})\}").match(self._pattern, self._at)
            if braced is not None and int(braced[1], 16) < 0x110000:
                self._at = braced.end()
                return chr(int(braced[1], 16))
            return self._parse_number(r"[0-9a-fA-F]{2}", 16)
        if letter == "c":
            return chr(ord(self._next_letter()) ^ 64)
        if letter in "123456789k":
            raise _NotTranslated(f"the back reference \\{letter} can't be written for other engines")
        if letter.isascii() and letter.isalpha():
            raise _NotTranslated(f"\\{letter} is no escape that can be written for other engines")
        return letter

    def _parse_number(self, digits: str, base: int) -> str:
        found = re.compile(digits).match(self._pattern, self._at)
        if found is None:
            raise _NotTranslated("an escape lacks its digits")
        self._at = found.end()
        return chr(int(found[0], base))

    def _property(self, negated: bool) -> Letters:
        found = re.compile(r"\{([^{}]+)\}|([A-Z])").match(self._pattern, self._at)
        if found is None:
            raise _NotTranslated(r"\p lacks its {…}")
        self._at = found.end()
        name = found[1] or found[2]
        category = name.removeprefix("Is")
        letters = _POSIX.get(name)
        if letters is None and re.fullmatch(r"[LMNZCPS][a-z]?", category):
            letters = frozenset(char for char in NAME_LETTERS if unicodedata.category(char).startswith(category))
        if letters is None or (letters == frozenset() and category == "Cn"):
            raise _NotTranslated(f"\\p{{{name}}} can't be written for other engines")
        if "i" in self._flags and (name in _CASED or category in _CASED):
            raise _NotTranslated(f"\\p{{{name}}} with (?i) means something else in each version of Java")
        return NAME_LETTERS - letters if negated else letters


def _class_piece(letters: Letters) -> _PatternPart:
    return _PatternPart(_class_text(letters), letter=True)


def _class_text(letters: Letters) -> str:
    """Return a pattern for one character out of a set, written so that Python and RE2 read it alike."""
    if not letters:
        return NEVER
    if letters == NAME_LETTERS:
        return "."
    if len(letters) == 1:
        (letter,) = letters
        return "\\." if letter == "." else letter
    runs: list[str] = []
    for letter in sorted(letters):
        if runs and ord(runs[-1][-1]) + 1 == ord(letter) and letter.isalnum():
            runs[-1] = runs[-1][0] + letter
        else:
            runs.append(letter)
    return f"[{''.join(map(_run_text, runs))}]"


def _run_text(run: str) -> str:
    if len(run) == 1:
        return "\\-" if run == "-" else run
    return run if ord(run[1]) == ord(run[0]) + 1 else f"{run[0]}-{run[1]}"
