"""Options of JAAS login modules, in which Java writes user names and passwords (`sasl.jaas.config`)."""

from __future__ import annotations

import re

from kohort.errors import InvalidInputError

_GAP = r"(?:\s|//[^\r\n]*|/\*.*?\*/)*+"
"""White space and comments."""
_MODULE = re.compile(rf"""{_GAP}([^\s=;"'/]+)(?=[\s;/]){_GAP}""", re.DOTALL)
_OPTION = re.compile(
    rf"""([\w.@$-]+){_GAP}={_GAP}(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))(?=[\s;/]){_GAP}""",
    re.DOTALL,
)
_FLAG = re.compile(rf"(?:required|requisite|sufficient|optional)(?=[\s;/]){_GAP}", re.IGNORECASE | re.DOTALL)
_END = re.compile(rf";{_GAP}", re.DOTALL)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""Letters that mean another character behind a backslash in Java's StreamTokenizer, which reads login modules."""


def parse_jaas_options(text: str) -> dict[str, str]:
    """Parse the options of a JAAS login module: `…ScramLoginModule required username="a" …;`.

    A value stands in double or single quotes, where a backslash escapes the next character. A value without a space, a
    quote or a semicolon needs no quotes. Comments as in Java may stand between the words.

    Raises:
        InvalidInputError: The text is not one login module. The message does not quote it, as it has a password.
    """
    module = _MODULE.match(text)
    if module is None or ";" not in text:
        raise InvalidInputError(
            "sasl.jaas.config must be a login module, `required`, its options and a semicolon, as in "
            '\'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="…";\''
        )
    flag = _FLAG.match(text, module.end())
    at = module.end() if flag is None else flag.end()
    options: dict[str, str] = {}
    while (option := _OPTION.match(text, at)) is not None:
        name, double, single, plain = option.groups()
        options[name] = plain if plain is not None else _unescaped(single if double is None else double)
        at = option.end()
    if not _END.fullmatch(text, at):
        after = f"after the option {list(options)[-1]}" if options else "before its first option"
        raise InvalidInputError(
            f"sasl.jaas.config can't be read {after}: a value with a space, a quote or a semicolon must be in double "
            "or single quotes, with a backslash before such a quote and before each backslash in it, and one semicolon "
            "ends the login module"
        )
    return options


def _unescaped(quoted: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), quoted)


def _character(escape: str) -> str:
    """Return the character of an escape: three octal digits, a letter as in `_ESCAPED`, or the character itself."""
    return chr(int(escape, 8)) if escape.isdecimal() and escape < "8" else _ESCAPED.get(escape, escape)
