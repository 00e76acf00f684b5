"""The generator of the clients' setting types for type checkers and editors, from the configuration classes.

Type checkers read source only, so the keywords of `Consumer(group_id=…)` must be written out once more. This tool
writes them, so that names, types, defaults and texts are those of the configuration classes. A test compares both.
"""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from kohort.client.producer.settings import ProducerConfig
from kohort.client.settings import ConnectionConfig, ConsumerConfig
from kohort.settings.config import Setting, default_text, settings

PLACE = Path(__file__).resolve().parent.parent / "src/kohort/client/setting_types.py"
POSITIONAL = ("bootstrap_servers",)
LINE = 120
_HEAD = '''"""The clients' settings as type checkers and editors know them: `**settings: Unpack[ConsumerSettings]`.

Written by tools/setting_types.py (`make docs`) from the configuration classes, which hold what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict
'''


def source() -> str:
    """Return the module's text."""
    connection = settings(ConnectionConfig)
    parts = [_HEAD, _class("ConnectionSettings", "TypedDict", "Admin's settings, which all clients have", connection)]
    for cls in (ConsumerConfig, ProducerConfig):
        who = cls.__name__.removesuffix("Config")
        own = {name: setting for name, setting in settings(cls).items() if name not in connection}
        parts.append(_class(f"{who}Settings", "ConnectionSettings", f"A {who.lower()}'s settings", own))
    return "\n\n".join(parts)


def _class(name: str, base: str, about: str, members: dict[str, Setting]) -> str:
    lines = [f"class {name}({base}, total=False):", f'    """{about}."""', ""]
    for setting in members.values():
        if setting.field in POSITIONAL:
            continue
        why = setting.declaration.why
        lines.append(f"    {setting.field}: {type_of(setting)}")
        text = f'"""{why[:1].upper()}{why[1:]}. Default: {default_text(setting)}."""'
        lines += textwrap.wrap(text, LINE, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
        lines.append("")
    return "\n".join(lines)


def type_of(setting: Setting) -> str:
    """Return the annotation of one setting: the type of its configuration class, and choices by name."""
    if setting.declaration.choices and setting.type is str:
        words = [repr(choice).replace("'", '"') for choice in setting.declaration.choices]
        numbers = [choice for choice in setting.declaration.choices if choice.lstrip("-").isdigit()]
        return f"Literal[{', '.join(words + numbers)}]"
    return _annotation(setting.type)


def _annotation(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return " | ".join(_annotation(argument) for argument in arguments)
    if origin is tuple:
        return f"Sequence[{_annotation(arguments[0])}]"
    if origin is Callable:
        taken, given = arguments
        return f"Callable[[{', '.join(map(_annotation, taken))}], {_annotation(given)}]"
    if hint is NoneType:
        return "None"
    return "Any" if hint is Any else hint.__name__


if __name__ == "__main__":
    PLACE.write_text(source(), encoding="utf-8")
