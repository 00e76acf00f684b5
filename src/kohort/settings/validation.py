"""Validation of values by type annotations.

A value is accepted unchanged, or refused with a message that names the expected type and the correct form.

    validator_for(Iterable[NewTopic], "topics").take(["x"])
    # ValidationError: [0] must be NewTopic, not 'x'; write NewTopic('x')

A value class (a dataclass, a NamedTuple) is checked by its own annotations. `RANGES` bounds numbers by the name of the
parameter or field: a name means the same everywhere. Only equivalent values are converted: numbers of other libraries
become Python's, and collections become lists.

`msgspec.convert` can't replace this module. It takes a string where a list is expected, and an instance with wrong
fields. It refuses NumPy's numbers, and its messages lack the parameter's name and the form to write. `beartype`
converts nothing, and takes six times as long to import: 183 ms of CPU, this module with `arguments` 31 ms.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any, NamedTuple

from kohort.errors import InvalidInputError

# -- Durations in text form

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(name: str, text: str) -> int:
    """Return milliseconds from a duration with its unit, as `15m`, `200ms`, `1h`; a plain number is milliseconds.

    Raises:
        InvalidInputError: the text is no duration.
    """
    word = text.strip().lower()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = word[len(number) :].strip() or "ms"
    try:
        return int(float(number) * _UNITS_MS[unit])
    except (KeyError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} must be a time like 15m, 30s or 200ms, not {text!r}") from None


INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
RANGES: Mapping[str, tuple[int, int]] = {
    "assignments": (0, INT32_MAX),
    "before": (-1, INT64_MAX),
    "brokers": (0, INT32_MAX),
    "delay_ms": (0, INT32_MAX),
    "epoch": (-1, 2**15 - 1),
    "iterations": (1, INT32_MAX),
    "leader_epoch": (-1, INT32_MAX),
    "levels": (0, 2**15 - 1),
    "max_records": (1, INT64_MAX),
    "max_value_bytes": (1, INT64_MAX),
    "num_partitions": (-1, INT32_MAX),
    "offset": (0, INT64_MAX),
    "offsets": (0, INT64_MAX),
    "open_for_ms": (0, INT64_MAX),
    "partition": (0, INT32_MAX),
    "replication_factor": (-1, 2**15 - 1),
    "skip": (0, INT64_MAX),
    "times": (0, INT64_MAX),
    "timeout_ms": (0, INT32_MAX),
    "timestamp_ms": (0, INT64_MAX),
    "totals": (1, INT32_MAX),
    "wanted": (0, INT64_MAX),
}
"""The range of a number by the name of a parameter or field, also within collections."""
NOT_EMPTY = ("data_dir", "topic", "topics")
SECRET = ("password", "secret", "token", "jaas", "keystore.key", "keystore_key")
_SHOWN = 80


class ValidationError(Exception):
    """A value that does not fit its annotation.

    Attributes:
        expected: The expected value, as in "must be …".
        value: The given value.
        path: Its path within the parameter, as `[0].name`.
        key: Whether the value is a key of the dict at that path.
    """

    def __init__(self, expected: str, value: object, write: str | Callable[[], str | None] | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.path = ""
        self.key = False
        self._write = write

    @property
    def correct_form(self) -> str | None:
        """The correct form of the value, where it is known."""
        return self._write() if callable(self._write) else self._write

    def with_path(self, path: str) -> ValidationError:
        """Prefix the path to the wrong value with one more level (such as `[0]`), and return this error."""
        self.path = path + self.path
        return self

    def message_for(self, name: str) -> str:
        """Return the error message for the parameter `name`."""
        location = f"{'a key of ' if self.key else ''}{name}{self.path}"
        if hides_value(location):
            return f"{location} must be {self.expected}, not {type(self.value).__name__}"
        given = _full(self.value) if "kohort." in self.expected else value_text(self.value)
        write = self.correct_form
        return f"{location} must be {self.expected}, not {given}" + (f"; write {write}" if write else "")


class Validator(NamedTuple):
    """A validator of one annotation.

    Attributes:
        expected: The expected value in words.
        take: Returns the value, possibly converted, or raises `ValidationError`.
        kind: The type, if the annotation is a type. In a union, this validator alone checks values of exactly this
            type.
        words: The choices, if the annotation is a Literal.
    """

    expected: str
    take: Callable[[Any], Any]
    kind: Any = None
    words: tuple[str, ...] = ()

    def accepts_value(self, value: object) -> bool:
        """Return whether `take` would accept the value.

        An iterator counts as unfit, because a check would consume it.
        """
        if isinstance(value, Iterator):
            return False
        try:
            self.take(value)
        except ValidationError:
            return False
        return True


ANYTHING = Validator("anything", lambda value: value)


def is_secret(name: str) -> bool:
    """Return whether a parameter of this name holds a secret, which messages must not show."""
    return any(word in name.lower() for word in SECRET)


def hides_value(name: str) -> bool:
    """Return whether messages must not show the value of a parameter of this name: a secret, or a URL with a login."""
    return is_secret(name) or re.sub("[^a-z]", "", name.lower()) in _URLS


_URLS = ("url", "registryurl", "schemaregistryurl")
_SCHEME = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)+(?://)?")
_ASSIGNED_SECRET = re.compile(r"(?:pass\w*|pwd|secret\w*|token)\s*=", re.IGNORECASE)
"""A secret among parameters in place of a URL, such as `host=db password=…`."""


def redacted_url(url: str) -> str:
    """Return a URL as a message shows it: without user, password, query and fragment, which may be secrets."""
    found = _SCHEME.match(url)
    scheme, rest = (found[0], url[found.end() :]) if found and ("//" in found[0] or "@" not in url) else ("", url)
    address, more = re.match(r"([^?#]*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    if "@" in more or _ASSIGNED_SECRET.search(address):  # in the first case a password with ? or # in it
        return f"{scheme}…"
    if "@" in address:
        address = f"…@{address.rpartition('@')[2]}"
    return f"{scheme}{address}{'…' if more else ''}"


def value_text(value: object) -> str:
    """Return a value as code in a message, cut when it is long."""
    kind = type(value)
    text = _written(value) if kind.__module__.startswith("kohort.") and _is_value(kind) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _written(value: Any) -> str:
    """Return an instance of a value class as Python code; fields with their default are left out, secrets hidden."""
    words = []
    for name, parameter in inspect.signature(type(value)).parameters.items():
        content = "…" if is_secret(name) else repr(getattr(value, name))
        if parameter.default is parameter.empty:
            words.append(content)
        elif getattr(value, name) not in (parameter.default, (), {}):
            words.append(f"{name}={content}")
    return f"{type(value).__name__}({', '.join(words)})"


def _is_value(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def _full(value: object) -> str:
    """Return a refused value as code, with the module of its type: another type may have the expected one's name."""
    kind = type(value)
    return value_text(value) if kind.__module__ == "builtins" else f"{kind.__module__}.{value_text(value)}"


def validator_for(hint: Any, name: str = "") -> Validator:
    """Return the validator of an annotation for a parameter or field of this name."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of(
            hint, [validator_for(argument, name) for argument in arguments if argument is not types.NoneType]
        )
    if origin is typing.Literal:
        return _words(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _row([validator_for(argument, name) for argument in arguments])
    origin = origin or hint
    if origin is Callable:
        return Validator("a function", _function)
    if isinstance(origin, type) and issubclass(origin, Iterable) and arguments:
        if issubclass(origin, Mapping):
            return _dict(*(validator_for(argument, name) for argument in arguments))
        return list_validator(validator_for(arguments[0], name), "tuple" if origin is tuple else "list")
    plain = {bool: _bool, int: _int, float: _float, str: _str}.get(origin)
    if plain is not None:
        return plain(name)
    return _instance(origin) if isinstance(origin, type) and origin is not object else ANYTHING


def _any_of(hint: Any, options: Sequence[Validator]) -> Validator:
    if ANYTHING in options:
        return ANYTHING
    optional = types.NoneType in typing.get_args(hint)
    expected = _or([word for option in options for word in option.words or (option.expected,)])
    if optional:
        expected += ", or None" if " or " in expected else " or None"
    if optional and len(options) == 1:
        (only,) = options

        def take_optional(value: Any) -> Any:
            if value is None:
                return None
            try:
                return only.take(value)
            except ValidationError as error:
                if not error.path and error.expected == only.expected:
                    error.expected = expected
                raise

        return Validator(expected, take_optional)

    by_kind = {option.kind: option.take for option in options if option.kind is not None}

    def accept_any_of(value: Any) -> Any:
        if value is None and optional:
            return None
        known = by_kind.get(type(value))
        if known is not None:
            return known(value)
        failed = []
        for option in options:
            try:
                return option.take(value)
            except ValidationError as error:
                if error.path or error.expected != option.expected:  # of the right kind, but not right
                    raise
                failed.append(error)
        raise ValidationError(
            expected, value, lambda: min(filter(None, (error.correct_form for error in failed)), key=len, default=None)
        )

    return Validator(expected, accept_any_of)


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(choices: Sequence[Any]) -> Validator:
    expected = _or([repr(choice) for choice in choices])

    def accept_words(value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        near = difflib.get_close_matches(value, choices, 1, 0.7) if isinstance(value, str) else ()
        raise ValidationError(expected, value, repr(near[0]) if near else None)

    return Validator(expected, accept_words, words=tuple(map(repr, choices)))


def _row(parts: Sequence[Validator]) -> Validator:
    expected = f"({', '.join(part.expected for part in parts)})"

    def accept_row(value: Any) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != len(parts):
            raise ValidationError(expected, value)
        taken = []
        for part, content in zip(parts, value, strict=True):
            try:
                taken.append(part.take(content))
            except ValidationError as error:
                error.with_path(f"[{len(taken)}]")
                raise
        return tuple(taken)

    return Validator(expected, accept_row)


def list_validator(item: Validator, kind: str = "list") -> Validator:
    """Return the validator of a collection of valid items."""
    expected = f"a {kind} of {item.expected}"
    form = "({},)" if kind == "tuple" else "[{}]"

    def accept_list(value: Any) -> list[Any] | tuple[Any, ...]:
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Iterable):
            raise ValidationError(expected, value, partial(_as_list, item, value, form))
        taken = []
        for at, content in enumerate(value):
            try:
                taken.append(item.take(content))
            except ValidationError as error:
                if item.accepts_value(value):
                    raise ValidationError(expected, value, form.format(value_text(value))) from None
                if isinstance(value, Mapping):
                    raise ValidationError(expected, value, partial(_items, item, value)) from None
                error.with_path(f"[{at}]" if isinstance(value, Sequence) else "")
                raise
        return tuple(taken) if isinstance(value, tuple) else taken

    return Validator(expected, accept_list)


def _as_list(item: Validator, value: Any, form: str) -> str | None:
    """Return code for the collection that a caller meant who gave a single item; None if the item does not fit.

    A text or bytes that are not valid, but have a known correction, fit too.
    """
    try:
        item.take(value)
    except ValidationError as error:
        return (
            None
            if error.path or error.correct_form is None or not isinstance(value, str | bytes)
            else form.format(error.correct_form)
        )
    return form.format(value_text(value))


def _items(item: Validator, value: Mapping[Any, Any]) -> str | None:
    """Return code for the list of (key, value) pairs that a caller meant who gave a dict; None if they do not fit."""
    pairs = list(value.items())
    return value_text(pairs) if all(item.accepts_value(pair) for pair in pairs) else None


def _dict(key: Validator, item: Validator) -> Validator:
    expected = f"a dict of {key.expected}" + ("" if item is ANYTHING else f" to {item.expected}")

    def accept_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError(expected, value)
        taken = {}
        for name, content in value.items():
            try:
                at = key.take(name)
            except ValidationError as error:
                error.key = True
                raise
            try:
                taken[at] = item.take(content)
            except ValidationError as error:
                error.with_path(f"[{name!r}]" if isinstance(name, str) else f"[{name}]")
                raise
        return taken

    return Validator(expected, accept_dict)


def _function(value: Any) -> Any:
    if not callable(value):
        raise ValidationError("a function", value)
    return value


def _bool(name: str) -> Validator:
    def accept_bool(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise ValidationError("bool", value)

    return Validator("bool", accept_bool, bool)


def _int(name: str) -> Validator:
    low, high = RANGES.get(name, (-INT64_MAX - 1, INT64_MAX))

    def accept_int(value: Any) -> int:
        if type(value) is not int:
            value = _as_integer(value)
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise ValidationError(_bounds(low, high, value), value)

    return Validator("int", accept_int, int)


def _as_integer(value: Any) -> int:
    """Convert another library's integer (such as NumPy's), or a member of an IntEnum, to int."""
    if not isinstance(value, bool):
        try:
            return int(operator.index(value))
        except TypeError:
            pass
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        raise ValidationError("int", value, value.strip())
    if isinstance(value, float) and value.is_integer():
        raise ValidationError("int", value, str(int(value)))
    raise ValidationError("int", value, _milliseconds(value))


def _milliseconds(value: Any) -> str | None:
    """Return code for a `timedelta` or `datetime` in milliseconds, as calls take it; None for any other value."""
    if hasattr(value, "total_seconds"):
        return str(round(value.total_seconds() * 1000))
    if callable(getattr(value, "timestamp", None)):
        return str(round(value.timestamp() * 1000))
    return None


def _float(name: str) -> Validator:
    low, high = RANGES.get(name, (-math.inf, math.inf))

    def accept_float(value: Any) -> float:
        kind = type(value)
        if kind is not int and kind is not float:
            try:
                if isinstance(value, bool | str | bytes):
                    raise TypeError
                value = float(value) if hasattr(value, "__float__") else operator.index(value)
            except TypeError:
                digits = isinstance(value, str) and value.strip().isdecimal()
                raise ValidationError("a number", value, value.strip() if digits else _milliseconds(value)) from None
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise ValidationError(_bounds(low, high, value), value)

    return Validator("a number", accept_float, float)


def _bounds(low: float, high: float, value: float) -> str:
    """Return the limits of a number in words, such as "from 0 to 100" or "at least 0".

    An upper limit of 2^63-1 is only named for a value that is not too small.
    """
    return f"at least {low}" if high == INT64_MAX and low > -INT64_MAX and value < low else f"from {low} to {high}"


def _str(name: str) -> Validator:
    full = name in NOT_EMPTY

    def accept_str(value: Any) -> Any:
        if isinstance(value, str):
            if full and not value:
                raise ValidationError("a name with at least one character", value)
            return value
        write = None
        if isinstance(value, bytes):
            write = repr(value.decode(errors="replace"))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            write = repr(str(value))
        elif isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
            write = repr(value[0])
        raise ValidationError("str", value, write)

    return Validator("str", accept_str, str)


def _instance(kind: Any) -> Validator:
    expected = kind.__name__

    def accept_instance(value: Any) -> Any:
        if not isinstance(value, kind):
            namesake = type(value).__name__ == expected
            full = f"{kind.__module__.partition('.')[0]}.{expected}" if namesake else expected
            raise ValidationError(full, value, partial(_form, kind, value))
        for name, validator, get in _parts(kind):
            try:
                validator.take(get(value))
            except ValidationError as error:
                error.with_path(f".{name}")
                raise
        return value

    return Validator(expected, accept_instance, kind)


@cache
def _parts(kind: Any) -> list[tuple[str, Validator, Callable[[Any], Any]]]:
    """Return (name, validator, getter) for each field of a dataclass or named tuple; empty for any other class."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    else:
        names = list(getattr(kind, "_fields", ()))
    hints = typing.get_type_hints(kind) if names else {}
    return [(name, validator_for(hints[name], name), operator.attrgetter(name)) for name in names]


def _form(kind: Any, value: Any) -> str | None:
    """Return code for a value of this type, made from the wrong value's parts where they fit; None if unknown."""
    name = kind.__name__
    if issubclass(kind, Enum):
        names = {number.value: word for word, number in kind.__members__.items()} | {
            word: word for word in kind.__members__
        }
        word = names.get(value.upper() if isinstance(value, str) else value if isinstance(value, int) else "")
        return f"{name}.{word or next(iter(kind.__members__))}"
    if kind is bytes:
        return repr(value.encode()) if isinstance(value, str) else None
    parts = {part: validator for part, validator, _ in _parts(kind)}
    if not parts:
        return None
    needed = [
        part for part, parameter in inspect.signature(kind).parameters.items() if parameter.default is parameter.empty
    ]
    if isinstance(value, Mapping):
        given = {part: value[part] for part in parts if part in value}
        words = [f"{part}={_part(parts[part], given[part])}" for part in given]
        words += [part for part in needed if part not in given]
    elif isinstance(value, list | tuple) and len(value) == len(needed):
        words = [_part(parts[part], content) for part, content in zip(needed, value, strict=True)]
    elif all(hasattr(value, part) for part in needed) and not isinstance(value, str):
        words = [_part(parts[part], getattr(value, part)) for part in needed]
    elif parts[needed[0]].accepts_value(value) if needed else False:
        words = [value_text(value), *needed[1:]]
    else:
        words = [*needed, "…"] if len(needed) < len(parts) else needed
    return f"{name}({', '.join(words)})"


def _part(validator: Validator, value: Any) -> str:
    try:
        return value_text(validator.take(value))
    except ValidationError as error:
        return error.correct_form or "…"
