"""Principals of clients, and users' names from certificates: the distinguished name, and rules that shorten it.

Source: RFC 2253 in the form of Java's `X500Principal.getName`, which Apache Kafka's users are named by; KIP-371.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from kohort.errors import InvalidInputError


class Principal(NamedTuple):
    """The authenticated identity of a client."""

    kind: str
    name: str

    def __str__(self) -> str:
        """The form of rules and logs, such as `User:alice`."""
        return f"{self.kind}:{self.name}"


ANYONE = Principal("User", "ANONYMOUS")
"""The principal of a client that did not authenticate."""


# -- Names from certificates

_KEYWORDS = {
    bytes.fromhex("550403"): "CN", bytes.fromhex("550406"): "C", bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST", bytes.fromhex("55040a"): "O", bytes.fromhex("55040b"): "OU",
    bytes.fromhex("550409"): "STREET", bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}  # fmt: skip
"""Attribute types that RFC 2253 has a word for, by the bytes of their object identifiers."""
_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "latin-1", 0x1E: "utf-16-be",
              0x1C: "utf-32-be"}  # fmt: skip
"""DER's string types."""
_SEQUENCE, _VERSION = 0x30, 0xA0
_ESCAPED = ',=+<>#;"\\'


class _Element(NamedTuple):
    tag: int
    whole: bytes
    content: bytes


def _elements(data: bytes) -> list[_Element]:
    """Split DER bytes into their elements; raise ValueError if they are no valid DER."""
    found, at = [], 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("DER ends within an element")
        size, start = data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, start = int.from_bytes(data[start : start + count], "big"), start + count
        if start + size > len(data):
            raise ValueError("DER ends within an element")
        found.append(_Element(data[at], data[at : start + size], data[start : start + size]))
        at = start + size
    return found


def certificate_subject(certificate: bytes) -> str:
    """Return the subject of a DER certificate, such as `CN=client,OU=team,O=example`.

    Raises:
        ValueError: the bytes are no certificate.
    """
    (whole,) = _elements(certificate)
    parts = _elements(whole.content)
    fields = _elements(parts[0].content) if parts else []
    if fields and fields[0].tag == _VERSION:
        fields = fields[1:]
    if len(fields) < 5 or fields[4].tag != _SEQUENCE:
        raise ValueError("a certificate without a subject")
    names = _elements(fields[4].content)
    return ",".join("+".join(_attribute(item) for item in _elements(part.content)) for part in reversed(names))


def _attribute(item: _Element) -> str:
    kind, value = _elements(item.content)
    keyword = _KEYWORDS.get(kind.content)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or _dotted(kind.content)}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _dotted(identifier: bytes) -> str:
    numbers, number = [], 0
    for byte in identifier:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an empty identifier in a certificate")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in _ESCAPED else "\\00" if letter == "\0" else letter for letter in text)
    start = len(escaped) - len(escaped.lstrip(" "))
    if start == len(escaped):
        return "\\ " * start
    end = len(escaped) - len(escaped.rstrip(" "))
    return "\\ " * start + escaped[start : len(escaped) - end] + "\\ " * end


# -- Rules that map a distinguished name to a user's name: `RULE:PATTERN/REPLACEMENT/[LU]` and `DEFAULT`

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:[,\n]|$)")
_DEFAULT = "DEFAULT"


class _MappingRule(NamedTuple):
    pattern: re.Pattern[str] | None
    replacement: str
    case: str


class PrincipalMapping:
    """The rules of `ssl.principal.mapping.rules`, of which the first that matches applies."""

    def __init__(self, text: str) -> None:
        """Parse the rules of `ssl.principal.mapping.rules`.

        Raises:
            InvalidInputError: a rule has another form, or its pattern is no regular expression.
        """
        self._rules: list[_MappingRule] = []
        at, text = 0, text.strip() or _DEFAULT
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise InvalidInputError(
                    f"ssl.principal.mapping.rules: {text[at : at + 100]!r} is no RULE:PATTERN/REPLACEMENT/[LU] and "
                    f"not {_DEFAULT}"
                )
            at = found.end()
            self._rules.append(self._rule(*found.groups()))

    @staticmethod
    def _rule(default: str | None, pattern: str, replacement: str, case: str) -> _MappingRule:
        if default:
            return _MappingRule(None, "", "")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InvalidInputError(f"ssl.principal.mapping.rules: {pattern!r}: {error}") from None
        return _MappingRule(compiled, replacement, case)

    def user_name_of(self, subject: str) -> str | None:
        """Return the user's name for a certificate's subject; None if no rule matches."""
        for rule in self._rules:
            pattern, case = rule.pattern, rule.case
            if pattern is None:
                return subject
            if pattern.fullmatch(subject):
                mapped = pattern.sub(partial(_expanded, rule.replacement), subject)
                return mapped.lower() if case == "L" else mapped.upper() if case == "U" else mapped
        return None


_REFERENCE = re.compile(r"\\(.)|\$(\d)")


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """Fill a match's groups into the replacement of a mapping rule: `$1` to `$9`, as Java's `replaceAll` does.

    A backslash quotes the next character.
    """

    def group_text(reference: re.Match[str]) -> str:
        quoted, group = reference.groups()
        if quoted is not None:
            return str(quoted)
        return (match[int(group)] or "") if int(group) <= match.re.groups else reference[0]

    return _REFERENCE.sub(group_text, replacement)
