"""What a type annotation admits.

Values are taken as they are, or refused with what is wanted and what to write instead.

    wanted(Iterable[NewTopic], "topics").take(["x"])        # Unfit: [0] must be NewTopic, not 'x'; write NewTopic('x')

A value class (a dataclass, a NamedTuple) is looked into by its own annotations. What else bounds a number goes by the
name of the parameter or field, `RANGES`: a name means the same wherever it stands. Nothing is converted but what says
the same thing: numbers of other libraries become Python's, and collections lists.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any, NamedTuple

from kohort.errors import InvalidInputError

# -- Times as people write them

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(name: str, text: str) -> int:
    """Milliseconds from a time with its unit, as `15m`, `200ms`, `1h`; a plain number is milliseconds.

    Raises:
        InvalidInputError: it is not that.
    """
    word = text.strip().lower()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = word[len(number) :].strip() or "ms"
    try:
        return int(float(number) * _UNITS_MS[unit])
    except (KeyError, ValueError):
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
"""Least and greatest number by the name of a parameter or field, also in the collections it takes."""
NOT_EMPTY = ("data_dir", "topic", "topics")
SECRET = ("password", "secret", "token", "jaas")
_SHOWN = 80


class Unfit(Exception):
    """A value that is not what is wanted.

    Attributes:
        said: What is wanted, as in "must be …".
        value: What was given.
        path: Where in the parameter it lies, as `[0].name`.
        key: It is a key of the dict there.
    """

    def __init__(self, said: str, value: object, write: str | Callable[[], str | None] | None = None) -> None:
        super().__init__(said)
        self.said = said
        self.value = value
        self.path = ""
        self.key = False
        self._write = write

    @property
    def write(self) -> str | None:
        """What to write instead, where that can be told."""
        return self._write() if callable(self._write) else self._write

    def within(self, path: str) -> Unfit:
        """The same, seen from one level further out."""
        self.path = path + self.path
        return self

    def text(self, name: str) -> str:
        """What to tell the caller about the parameter `name`."""
        place = f"{'a key of ' if self.key else ''}{name}{self.path}"
        if is_secret(place):
            return f"{place} must be {self.said}, not {type(self.value).__name__}"
        given = _full(self.value) if "kohort." in self.said else shown(self.value)
        write = self.write
        return f"{place} must be {self.said}, not {given}" + (f"; write {write}" if write else "")


class Want(NamedTuple):
    """What is wanted.

    Attributes:
        said: In words.
        take: Gives the value, or raises `Unfit`.
        kind: The type, where it is one; values of just this type are for this want alone.
        words: The choices, where it is one of some.
    """

    said: str
    take: Callable[[Any], Any]
    kind: Any = None
    words: tuple[str, ...] = ()

    def fits(self, value: object) -> bool:
        """Whether the value would be taken; an iterator is not looked into."""
        if isinstance(value, Iterator):
            return False
        try:
            self.take(value)
        except Unfit:
            return False
        return True


ANYTHING = Want("anything", lambda value: value)


def is_secret(name: str) -> bool:
    """Whether what goes by this name is not to be shown."""
    return any(word in name.lower() for word in SECRET)


def shown(value: object) -> str:
    """A value in a message, as one would write it; cut when it is long."""
    kind = type(value)
    text = _written(value) if kind.__module__.startswith("kohort.") and _is_value(kind) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _written(value: Any) -> str:
    """A value of a value class without what is its default anyway."""
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
    """A value with the module of its type: what is of the name that is wanted but another library's."""
    kind = type(value)
    return shown(value) if kind.__module__ == "builtins" else f"{kind.__module__}.{shown(value)}"


def wanted(hint: Any, name: str = "") -> Want:
    """What an annotation admits for a parameter or field of this name."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of(hint, [wanted(each, name) for each in arguments if each is not types.NoneType])
    if origin is typing.Literal:
        return _words(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _row([wanted(each, name) for each in arguments])
    origin = origin or hint
    if origin is Callable:
        return Want("a function", _function)
    if isinstance(origin, type) and issubclass(origin, Iterable) and arguments:
        if issubclass(origin, Mapping):
            return _dict(*(wanted(each, name) for each in arguments))
        return list_of(wanted(arguments[0], name), "tuple" if origin is tuple else "list")
    plain = {bool: _bool, int: _int, float: _float, str: _str}.get(origin)
    if plain is not None:
        return plain(name)
    return _instance(origin) if isinstance(origin, type) and origin is not object else ANYTHING


def _any_of(hint: Any, options: Sequence[Want]) -> Want:
    if ANYTHING in options:
        return ANYTHING
    optional = types.NoneType in typing.get_args(hint)
    said = _or([word for option in options for word in option.words or (option.said,)])
    if optional:
        said += ", or None" if " or " in said else " or None"
    if optional and len(options) == 1:
        (only,) = options

        def take_optional(value: Any) -> Any:
            if value is None:
                return None
            try:
                return only.take(value)
            except Unfit as unfit:
                if not unfit.path and unfit.said == only.said:
                    unfit.said = said
                raise

        return Want(said, take_optional)

    by_kind = {option.kind: option.take for option in options if option.kind is not None}

    def take(value: Any) -> Any:
        if value is None and optional:
            return None
        known = by_kind.get(type(value))
        if known is not None:
            return known(value)
        failed = []
        for option in options:
            try:
                return option.take(value)
            except Unfit as unfit:
                if unfit.path or unfit.said != option.said:  # of the right kind, but not right
                    raise
                failed.append(unfit)
        raise Unfit(said, value, lambda: min(filter(None, (unfit.write for unfit in failed)), key=len, default=None))

    return Want(said, take)


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(choices: Sequence[Any]) -> Want:
    said = _or([repr(choice) for choice in choices])

    def take(value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        near = difflib.get_close_matches(value, choices, 1, 0.7) if isinstance(value, str) else ()
        raise Unfit(said, value, repr(near[0]) if near else None)

    return Want(said, take, words=tuple(map(repr, choices)))


def _row(parts: Sequence[Want]) -> Want:
    said = f"({', '.join(part.said for part in parts)})"

    def take(value: Any) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != len(parts):
            raise Unfit(said, value)
        taken = []
        for part, each in zip(parts, value, strict=True):
            try:
                taken.append(part.take(each))
            except Unfit as unfit:
                unfit.within(f"[{len(taken)}]")
                raise
        return tuple(taken)

    return Want(said, take)


def list_of(item: Want, kind: str = "list") -> Want:
    """Several of what is wanted."""
    said = f"a {kind} of {item.said}"
    form = "({},)" if kind == "tuple" else "[{}]"

    def take(value: Any) -> list[Any] | tuple[Any, ...]:
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Iterable):
            raise Unfit(said, value, partial(_as_list, item, value, form))
        taken = []
        for at, each in enumerate(value):
            try:
                taken.append(item.take(each))
            except Unfit as unfit:
                if item.fits(value):
                    raise Unfit(said, value, form.format(shown(value))) from None
                if isinstance(value, Mapping):
                    raise Unfit(said, value, partial(_items, item, value)) from None
                unfit.within(f"[{at}]" if isinstance(value, Sequence) else "")
                raise
        return tuple(taken) if isinstance(value, tuple) else taken

    return Want(said, take)


def _as_list(item: Want, value: Any, form: str) -> str | None:
    """One thing where several are wanted."""
    try:
        item.take(value)
    except Unfit as unfit:
        return (
            None
            if unfit.path or unfit.write is None or not isinstance(value, str | bytes)
            else form.format(unfit.write)
        )
    return form.format(shown(value))


def _items(item: Want, value: Mapping[Any, Any]) -> str | None:
    """A dict where pairs are wanted."""
    pairs = list(value.items())
    return shown(pairs) if all(item.fits(pair) for pair in pairs) else None


def _dict(key: Want, item: Want) -> Want:
    said = f"a dict of {key.said}" + ("" if item is ANYTHING else f" to {item.said}")

    def take(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Unfit(said, value)
        taken = {}
        for each, content in value.items():
            try:
                at = key.take(each)
            except Unfit as unfit:
                unfit.key = True
                raise
            try:
                taken[at] = item.take(content)
            except Unfit as unfit:
                unfit.within(f"[{each!r}]" if isinstance(each, str) else f"[{each}]")
                raise
        return taken

    return Want(said, take)


def _function(value: Any) -> Any:
    if not callable(value):
        raise Unfit("a function", value)
    return value


def _bool(name: str) -> Want:
    def take(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise Unfit("bool", value)

    return Want("bool", take, bool)


def _int(name: str) -> Want:
    low, high = RANGES.get(name, (-INT64_MAX - 1, INT64_MAX))

    def take(value: Any) -> int:
        if type(value) is not int:
            value = _whole(value)
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise Unfit(_bounds(low, high, value), value)

    return Want("int", take, int)


def _whole(value: Any) -> int:
    """An int of another library's, or of an IntEnum."""
    if not isinstance(value, bool):
        try:
            return int(operator.index(value))
        except TypeError:
            pass
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        raise Unfit("int", value, value.strip())
    if isinstance(value, float) and value.is_integer():
        raise Unfit("int", value, str(int(value)))
    raise Unfit("int", value, _milliseconds(value))


def _milliseconds(value: Any) -> str | None:
    """A time or a duration, as the interface takes it."""
    if hasattr(value, "total_seconds"):
        return str(round(value.total_seconds() * 1000))
    if callable(getattr(value, "timestamp", None)):
        return str(round(value.timestamp() * 1000))
    return None


def _float(name: str) -> Want:
    low, high = RANGES.get(name, (-math.inf, math.inf))

    def take(value: Any) -> float:
        kind = type(value)
        if kind is not int and kind is not float:
            try:
                if isinstance(value, bool | str | bytes):
                    raise TypeError
                value = float(value) if hasattr(value, "__float__") else operator.index(value)
            except TypeError:
                digits = isinstance(value, str) and value.strip().isdigit()
                raise Unfit("a number", value, value.strip() if digits else _milliseconds(value)) from None
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise Unfit(_bounds(low, high, value), value)

    return Want("a number", take, float)


def _bounds(low: float, high: float, value: float) -> str:
    """The limits in words; the highest number that Kafka has is only named to those who exceed it."""
    return f"at least {low}" if high == INT64_MAX and low > -INT64_MAX and value < low else f"from {low} to {high}"


def _str(name: str) -> Want:
    full = name in NOT_EMPTY

    def take(value: Any) -> Any:
        if isinstance(value, str):
            if full and not value:
                raise Unfit("a name with at least one character", value)
            return value
        write = None
        if isinstance(value, bytes):
            write = repr(value.decode(errors="replace"))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            write = repr(str(value))
        elif isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
            write = repr(value[0])
        raise Unfit("str", value, write)

    return Want("str", take, str)


def _instance(kind: Any) -> Want:
    said = kind.__name__

    def take(value: Any) -> Any:
        if not isinstance(value, kind):
            namesake = type(value).__name__ == said
            full = f"{kind.__module__.partition('.')[0]}.{said}" if namesake else said
            raise Unfit(full, value, partial(_form, kind, value))
        for name, want, get in _parts(kind):
            try:
                want.take(get(value))
            except Unfit as unfit:
                unfit.within(f".{name}")
                raise
        return value

    return Want(said, take, kind)


@cache
def _parts(kind: Any) -> list[tuple[str, Want, Callable[[Any], Any]]]:
    """The fields of a value class: name, what is wanted, how to get it."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    else:
        names = list(getattr(kind, "_fields", ()))
    hints = typing.get_type_hints(kind) if names else {}
    return [(name, wanted(hints[name], name), operator.attrgetter(name)) for name in names]


def _form(kind: Any, value: Any) -> str | None:
    """How to write what is wanted, with what was given where that can be told."""
    name = kind.__name__
    if issubclass(kind, Enum):
        names = {number.value: word for word, number in kind.__members__.items()} | {
            word: word for word in kind.__members__
        }
        word = names.get(value.upper() if isinstance(value, str) else value if isinstance(value, int) else "")
        return f"{name}.{word or next(iter(kind.__members__))}"
    if kind is bytes:
        return repr(value.encode()) if isinstance(value, str) else None
    parts = {part: want for part, want, _ in _parts(kind)}
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
        words = [_part(parts[part], each) for part, each in zip(needed, value, strict=True)]
    elif all(hasattr(value, part) for part in needed) and not isinstance(value, str):
        words = [_part(parts[part], getattr(value, part)) for part in needed]
    elif parts[needed[0]].fits(value) if needed else False:
        words = [shown(value), *needed[1:]]
    else:
        words = [*needed, "…"] if len(needed) < len(parts) else needed
    return f"{name}({', '.join(words)})"


def _part(want: Want, value: Any) -> str:
    try:
        return shown(want.take(value))
    except Unfit as unfit:
        return unfit.write or "…"
