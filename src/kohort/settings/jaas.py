"""Options of JAAS login modules, in which Java writes user names and passwords (`sasl.jaas.config`)."""

from __future__ import annotations

import re

from kohort.errors import InvalidInputError

_JAAS = re.compile(r'([\w.@-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)


def jaas_options(text: str) -> dict[str, str]:
    """Parse the options of a JAAS login module: `…ScramLoginModule required username="a" …;`.

    A value without spaces needs no quotes; in quotes, a backslash escapes the next character.

    Raises:
        InvalidInputError: The text is not a login module.
    """
    module, _, rest = text.strip().partition(" ")
    if not module or "=" in module or not rest.rstrip().endswith(";"):
        raise InvalidInputError(
            "sasl.jaas.config must be a login module, `required`, its options and a semicolon, as in "
            '\'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="…";\''
        )
    return {
        name: plain or re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) for name, quoted, plain in _JAAS.findall(rest)
    }
