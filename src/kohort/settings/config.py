"""Configuration: every setting with Kafka's property name, its unit, its limits and its purpose.

A configuration is one frozen dataclass whose fields are made by `declare_setting`. `from_properties` turns user input
(strings from a file, values from Python) into an instance. It refuses invalid input: for an unknown key it names the
nearest known one, for a value out of range the range.

    @dataclass(frozen=True, slots=True)
    class FetchConfig:
        fetch_max_bytes: int = declare_setting("fetch.max.bytes", 52_428_800, low=0, unit="bytes", why="limits it")

    from_properties(FetchConfig, {"fetch.max.bytes": "1000"})

`msgspec.convert` would replace a dozen lines of `_convert`. It takes "1" as true and refuses " 5 ", unlike Kafka, and
knows neither lists in one string nor functions.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import inspect
import ipaddress
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from kohort.errors import InvalidInputError
from kohort.settings.validation import duration_ms, hides_value

T = TypeVar("T")

_DECLARATION = "kohort.setting"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_PROPERTY = re.compile(r"((?:\\.|[^\\=:])*+)[=:](.*)")
_USER = re.compile(r"((?:\\.|[^\\=])*+)=(.*)")
"""A line with a user's name, which may have a colon, and the password."""


@dataclasses.dataclass(frozen=True, slots=True)
class SettingDeclaration:
    """The declaration of one setting besides its type and default, which the dataclass field holds.

    Attributes:
        name: Kafka's property name.
        unit: of the value, as "ms" or "bytes"; empty for a plain number or a word.
        why: the purpose of the setting, in one sentence.
        low: the smallest value allowed, or None.
        high: the largest value allowed, or None.
        choices: the only words allowed, or none.
        aliases: other property names that mean this setting.
        elsewhere: its names in other projects' clients; the error for such a name points to this setting.
        check: raises ValueError for a value that limits and choices can't describe.
    """

    name: str
    unit: str = ""
    why: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None


def declare_setting(name: str, default: Any, **facts: Any) -> Any:
    """Declare a dataclass field that is a setting; a secret is left out of the configuration's `repr`.

    Args:
        name: Kafka's property name.
        default: the value when the user gives none.
        **facts: the other attributes of `SettingDeclaration`: unit, why, low, high, choices, aliases, elsewhere, check.
    """
    declared = SettingDeclaration(name, **facts)
    return dataclasses.field(default=default, repr=not hides_value(name), metadata={_DECLARATION: declared})


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its declaration and its field in a configuration class."""

    field: str
    declaration: SettingDeclaration
    type: Any
    default: Any


@cache
def settings(cls: type) -> dict[str, Setting]:
    """Return the settings of a configuration class by property name (without aliases), in the order of declaration."""
    hints = typing.get_type_hints(cls)
    declared: dict[str, Setting] = {}
    for field in dataclasses.fields(cls):
        fact = field.metadata.get(_DECLARATION)
        if fact is not None:
            declared[fact.name] = Setting(field.name, fact, hints[field.name], field.default)
    return declared


def from_properties(cls: type[T], properties: Mapping[str, Any], *, field_names: bool = False) -> T:
    """Return an instance of `cls` from properties.

    Args:
        cls: a configuration class, a frozen dataclass.
        properties: property name to string or value. None means the default.
        field_names: also accept the dataclass's own field names, and names with `_` for `.` (`fetch_max_bytes`).

    Raises:
        InvalidInputError: an unknown key (naming the nearest), a value of the wrong kind or out of range.
    """
    (config,) = from_properties_many((cls,), properties, field_names=field_names)
    return config  # type: ignore[no-any-return]


def from_properties_many(
    classes: Iterable[type], properties: Mapping[str, Any], *, field_names: bool = False
) -> tuple[Any, ...]:
    """Return one instance of each class, from properties that are divided among them.

    A property that several of the classes know goes to each of them.

    Raises:
        InvalidInputError: as `from_properties`.
    """
    classes = tuple(classes)
    values: list[dict[str, Any]] = [{} for _ in classes]
    tables = [_by_key(cls, field_names) for cls in classes]
    for key, raw in properties.items():
        known = False
        for table, chosen in zip(tables, values, strict=True):
            setting = table.get(key)
            if setting is None:
                continue
            known = True
            if raw is not None:
                chosen[setting.field] = parse_value(setting, raw, key)
        if not known:
            raise unknown_key(key, {name: setting for table in tables for name, setting in table.items()})
    return tuple(cls(**chosen) for cls, chosen in zip(classes, values, strict=True))


def unknown_key(key: str, known: Iterable[str], text: str = "unknown setting") -> InvalidInputError:
    """Return the error for an unknown key: the text, the key, then the nearest known key, in the key's own style."""
    return InvalidInputError(f"{text} {key}{_meaning(nearest_key(key, known))}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the nearest known word, ignoring letter case; empty when none is near."""
    return _meaning(_nearest(word.lower(), {name.lower(): name for name in known}))


def _meaning(near: str | None) -> str:
    return f"; did you mean {near}?" if near else ""


def _nearest(word: str, names: Mapping[str, str], likeness: float = 0.5) -> str | None:
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=likeness)
    return names[near[0]] if near else None


_KEY_LIKENESS = 0.55
"""How much of a key must agree: `timeout` means `request.timeout.ms`, and `api.version` not `bootstrap.servers`."""


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that is probably meant: other projects' names and other spellings count too.

    Args:
        key: the given key.
        known: the known keys; in a mapping to `Setting`, other projects' names count too.
    """
    names = {_bare_key(name): name for name in known if "." in name or "." not in key}
    names |= {_bare_key(name): name for name in known if ("." in name) == ("." in key)}
    if isinstance(known, Mapping):
        for name in list(names.values()):
            for other in known[name].declaration.elsewhere:
                names.setdefault(_bare_key(other), name)
    return _nearest(_bare_key(key), names, _KEY_LIKENESS)


def _bare_key(key: str) -> str:
    """Return a key in one spelling, lower case with dots: `groupId`, `group_id` and `group.id` become equal."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", ".", str(key)).lower()


def parse_value(setting: Setting, raw: Any, key: str | None = None) -> Any:
    """Return a setting's value from a string or a Python value, within the setting's limits.

    Raises:
        InvalidInputError: the value is of the wrong kind or out of range.
    """
    fact = setting.declaration
    name = key or fact.name
    if type(raw) is int and str(raw) in fact.choices:
        raw = str(raw)
    try:
        value = _convert(setting.type, raw)
    except (TypeError, ValueError):
        given = type(raw).__name__ if hides_value(fact.name) else repr(raw)
        kind = f"one of {', '.join(fact.choices)}" if fact.choices else _kind(setting.type)
        raise InvalidInputError(f"{name} must be {kind}, not {given}{_how_to_write(setting, raw, name)}") from None
    if value is None:
        return value
    if (fact.low is not None and value < fact.low) or (fact.high is not None and value > fact.high):
        raise InvalidInputError(f"{name} must be {_range(fact)}, not {raw!r}")
    words = value if isinstance(value, tuple) else (value,)
    if fact.choices and any(word not in fact.choices for word in words):
        raise InvalidInputError(f"{name} must be one of {', '.join(fact.choices)}, not {raw!r}")
    if fact.check is not None:
        try:
            fact.check(value)
        except ValueError as error:
            raise InvalidInputError(f"{name}: {error}") from None
    return value


def format_value(value: Any) -> str:
    """Return a value as it stands in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(part) for part in value)
    return str(value)


def read_users(path: str | Path) -> dict[str, str]:
    """Return the passwords of a file of users by name: properties, where a colon in a name needs no backslash.

    Raises:
        InvalidInputError: as `read_properties`.
    """
    return read_properties(path, _USER)


def read_properties(path: str | Path, line_format: re.Pattern[str] = _PROPERTY) -> dict[str, str]:
    """Return the properties of a file in Java's properties format (`key=value`, `#` and `!` start comments).

    The first `=` or `:` without a backslash ends the key.

    Args:
        path: the file.
        line_format: matches a line with a key and its value.

    Raises:
        InvalidInputError: the file can't be read, or a line is no property. The text has the line's number alone: the
            line may have a password.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"can't read the configuration {path}: {error}") from None
    properties: dict[str, str] = {}
    pending = ""
    # `splitlines` would also split at characters that a password can have. The last line may end with a backslash.
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = pending + line.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        found = line_format.match(line) or _PROPERTY.match(line)
        if found is None or not found[1].strip():
            raise InvalidInputError(f"{path}, line {number}: expected key=value")
        key, value = found.groups()
        try:
            properties[_unescaped(key.strip())] = _unescaped(value.strip())
        except UnicodeDecodeError:
            raise InvalidInputError(f"{path}, line {number}: an escape is half of a character") from None
    return properties


def _unescaped(text: str) -> str:
    """Unescape a key or value as Java does: tools that write such files put a backslash before each colon."""
    if "\\" not in text:
        return text
    # Java writes a character beyond \uffff as two escapes
    return _ESCAPE.sub(_escaped_char, text).encode("utf-16", "surrogatepass").decode("utf-16")


def _escaped_char(escape: re.Match[str]) -> str:
    char = escape[1]
    return chr(int(char[1:], 16)) if len(char) == 5 else {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(char, char)


def parse_assignments(pairs: Iterable[str]) -> dict[str, str]:
    """Return properties from `key=value` words of a command line.

    Raises:
        InvalidInputError: a word without `=`.
    """
    properties: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidInputError(f"expected key=value, found {pair!r}")
        properties[key.strip()] = value.strip()
    return properties


def _by_key(cls: type, field_names: bool) -> dict[str, Setting]:
    table: dict[str, Setting] = {}
    for name, setting in settings(cls).items():
        for key in (name, *setting.declaration.aliases):
            table[key] = setting
            if field_names:
                table[key.replace(".", "_")] = setting
        if field_names:
            table[setting.field] = setting
    return table


def by_field_name(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the names of their fields, as keyword arguments have them; unknown names stay as they are."""
    table = _by_key(cls, True)
    return {table[key].field if key in table else key: value for key, value in given.items()}


def by_property_name(cls: type, given: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as a properties file has them, by Kafka's names; without those that are None.

    Unknown names stay as they are.
    """
    table = _by_key(cls, True)
    return {
        table[key].declaration.name if key in table else key: format_value(value)
        for key, value in given.items()
        if value is not None
    }


def _convert(kind: Any, raw: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if raw is None or raw == "":
            return None
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return _convert(options[0], raw)
    if origin is tuple:
        parts = raw.split(",") if isinstance(raw, str) else raw
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, part) for part in parts if not isinstance(part, str) or part.strip())
    if kind is bool:
        return _to_bool(raw)
    if kind is int:
        if isinstance(raw, bool) or (isinstance(raw, float) and not raw.is_integer()):
            raise ValueError(raw)
        return int(raw)
    if kind is float:
        number = math.nan if isinstance(raw, bool) else float(raw)
        if math.isnan(number):  # NaN passes every comparison with a bound
            raise ValueError(raw)
        return number
    if kind is str:
        if not isinstance(raw, str):
            raise ValueError(raw)
        return raw.strip()
    if origin is collections.abc.Callable and not callable(raw):
        raise ValueError(raw)
    return raw


def _how_to_write(setting: Setting, raw: Any, name: str) -> str:
    """Return a hint for a refused value, such as `; write 5000, in milliseconds` for `5s`; empty if none fits."""
    if isinstance(raw, str) and re.split(r"[._]", setting.declaration.name)[-1] == "ms" and raw[-1:].isalpha():
        try:
            return f"; write {duration_ms(name, raw)}, in milliseconds"
        except InvalidInputError:
            return ""
    if _kind(setting.type) != _kind(str) or setting.declaration.choices or isinstance(raw, bool) or hides_value(name):
        return ""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw) if isinstance(raw, int) else ""
    return f"; write {name}={text!r}" if text else ""


def _to_bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in ("true", "false"):
        return word == "true"
    raise ValueError(raw)


def _kind(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _kind(next(option for option in typing.get_args(kind) if option is not type(None)))
    if origin is tuple:
        return "a list of words, or one string with commas between"
    if origin is collections.abc.Callable:
        return "a function"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(kind, str(kind))


def _range(fact: SettingDeclaration) -> str:
    unit = f" {fact.unit}" if fact.unit else ""
    if fact.high is None:
        return f"at least {fact.low:g}{unit}" if isinstance(fact.low, float) else f"at least {fact.low}{unit}"
    if fact.low is None:
        return f"at most {fact.high}{unit}"
    return f"from {fact.low} to {fact.high}{unit}"


def settings_documentation(cls: type, indent: str = "") -> str:
    """Return the documentation of a configuration class's settings: keyword, default, limits, purpose."""
    lines = []
    for setting in settings(cls).values():
        lines += [
            f"{setting.field}: {default_text(setting)}",
            f"    {setting.declaration.why[:1].upper()}{setting.declaration.why[1:]}.",
        ]
    return "\n".join(indent + line for line in lines)


def documents_settings(config: type) -> Callable[[type[T]], type[T]]:
    """Add the settings of `config` to the documentation of a class that takes them as keyword arguments.

    The text is made when it is first requested.
    """

    def document_class(cls: type[T]) -> type[T]:
        cls.__doc__ = cast(str, _Documentation(inspect.cleandoc(cls.__doc__ or ""), config))
        return cls

    return document_class


class _Documentation:
    def __init__(self, text: str, config: type) -> None:
        self._text = text
        self._config = config

    def __get__(self, instance: object, owner: type) -> str:
        listed = settings_documentation(self._config, "    ")
        return f"{self._text}\n\nSettings, by keyword, with their defaults:\n{listed}\n"


def default_text(setting: Setting) -> str:
    """Return a setting's default with its unit, and its choices or range, for documentation."""
    fact = setting.declaration
    default = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    text = f"{default!r}" + (f" {fact.unit}" if fact.unit and setting.default is not None else "")
    if fact.choices:
        return f"{text} ({', '.join(choice for choice in fact.choices if choice)})"
    if fact.low is not None or fact.high is not None:
        return f"{text} ({_range(fact)})"
    return text


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`, `[V6]:PORT` or `PLAINTEXT://HOST:PORT`.

    Raises:
        InvalidInputError: the text has none of these forms.
    """
    address = listen.removeprefix("PLAINTEXT://")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        ports = " (ports are from 0 to 65535)" if colon and port.isdecimal() else ""
        raise InvalidInputError(f"the address to listen on must be HOST:PORT, not {listen!r}{ports}")
    return host or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach an address; the name of another host counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
