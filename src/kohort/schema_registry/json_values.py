"""JSON values with a schema id before them. Before a value is written, jsonschema checks it against its JSON Schema."""

from __future__ import annotations

import importlib
import json  # not msgspec, without which clients start
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urljoin

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.name_patterns import bounded_options, load_re2
from kohort.schema_registry.prefix import PREFIX_BYTES, check_value_size, schema_prefix

_REASON_MAX = 200
"""Characters of a reason, which has the value in it."""
_ODD_SCHEMA = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, re.error)
"""Errors of jsonschema that are no answer: a reference to a number, a malformed pattern of draft 4, a number that no
float can have beside `multipleOf`.
"""


def parse_json_value(data: bytes, max_bytes: int) -> Any:
    """Return the JSON after the schema id of a value, without a check against its schema.

    Raises:
        CorruptDataError: the value is too large, or no JSON.
    """
    check_value_size(data, max_bytes)
    try:
        return json.loads(data[PREFIX_BYTES:])
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"no JSON: {error}") from None


def json_writer(text: str, number: int, imports: tuple[tuple[str, str], ...] = ()) -> Callable[[Any], bytes]:
    """Return a function that writes values of a JSON Schema behind its id, in UTF-8 and without blanks.

    Args:
        text: the schema. Without `$schema` it is one of draft 7, as in Confluent's serializers.
        number: the schema's id.
        imports: the schemas that it refers to: the name of each, and its text.

    Raises:
        InvalidInputError: the schema is invalid, or jsonschema is not installed.
    """
    check = json_schema_checker(text, imports)
    prefix = schema_prefix(number)

    def write_value(value: Any) -> bytes:
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            data = written.encode()
            parsed = json.loads(written)
            is_same = parsed == value
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"the value can't be JSON: {str(error)[:_REASON_MAX]}") from None
        if not is_same:
            raise InvalidInputError(
                "the value would change as JSON: it is made of dicts with text as keys, lists, text, numbers, "
                "True, False and None; a tuple would become a list, and the key 1 the text '1'"
            )
        check(parsed)
        return prefix + data

    return write_value


def json_schema_checker(text: str, imports: tuple[tuple[str, str], ...] = ()) -> Callable[[Any], None]:
    """Return a function that compares parsed JSON with a JSON Schema, and raises InvalidInputError if it differs.

    References within the schema, and to those that it is given, are followed. Nothing is fetched. `format` is not
    checked. A check takes `CHECK_CPU_S` at most, whatever the schema is.

    Args:
        text: the schema.
        imports: the schemas that it refers to: the name of each, and its text. A name is one beside the `$id` of
            a schema, as for Confluent's serializers.

    Raises:
        InvalidInputError: the schema is invalid, or jsonschema is not installed.
    """
    try:
        from jsonschema import Draft7Validator
        from jsonschema.exceptions import UnknownType
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY
        from referencing.exceptions import Unresolvable
    except ModuleNotFoundError:
        raise InvalidInputError(
            "a JSON Schema is compared by jsonschema, which is not installed: pip install 'kohort[registry]'"
        ) from None
    try:
        schema = json.loads(text)
        kind = validator_for(schema, default=Draft7Validator)
        with limit_check_time():
            _check_schema(kind, schema)
        known = REGISTRY.with_resources(_referenced_schemas(schema, imports))  # the default fetches references by HTTP
    except InvalidInputError:
        raise
    except _ODD_SCHEMA as error:
        raise InvalidInputError(f"no JSON Schema: {str(error)[:_REASON_MAX]}") from None
    validator = bounded_validator(kind)(schema, registry=known)
    unseen = unbounded_patterns([schema, *(json.loads(text) for _, text in imports)])

    def check_value(value: Any) -> None:
        try:
            for pattern in unseen:
                refuse_slow_pattern(pattern, longest_name(value))
            with limit_check_time():
                error = next(validator.iter_errors(value), None)
        except Unresolvable as missing:
            raise InvalidInputError(
                f"the schema refers to {missing.ref[:_REASON_MAX]}, which it does not have: nothing is fetched"
            ) from None
        except InvalidInputError:
            raise
        except RecursionError:
            raise InvalidInputError("the schema refers to itself without an end, or the value is too deep") from None
        except (UnknownType, *_ODD_SCHEMA) as odd:
            text = f"{type(odd).__name__}: {str(odd)[:_REASON_MAX]}"
            raise InvalidInputError(f"the value can't be compared with the schema: {text}") from None
        if error is not None:
            raise InvalidInputError(f"the value is not of the schema: {error.json_path}: {error.message[:_REASON_MAX]}")

    return check_value


def _check_schema(kind: Any, schema: Any) -> None:
    """Compare a schema with the schema of its draft, as `check_schema` of jsonschema does, in bounded time.

    Raises:
        InvalidInputError: the schema is invalid.
    """
    from jsonschema.validators import validator_for

    meta = validator_for(kind.META_SCHEMA, default=kind)
    validator = bounded_validator(meta)(kind.META_SCHEMA, format_checker=meta.FORMAT_CHECKER)
    error = next(validator.iter_errors(schema), None)
    if error is not None:
        raise InvalidInputError(f"no JSON Schema: {error.json_path}: {error.message[:_REASON_MAX]}")


def _referenced_schemas(schema: Any, imports: tuple[tuple[str, str], ...]) -> list[tuple[str, Any]]:
    """Return (name, schema) for each schema that a schema refers to, under every name by which it can be referred to.

    If a name comes twice, the last one counts.
    """
    from referencing import Resource
    from referencing.jsonschema import DRAFT7

    found = [(name, Resource.from_contents(json.loads(text), default_specification=DRAFT7)) for name, text in imports]
    own = [*found, *((identity, resource) for _, resource in found if (identity := resource.id()))]
    base = schema.get("$id", schema.get("id")) if isinstance(schema, dict) else None
    bases = [*([base] if isinstance(base, str) else []), *(name for name, _ in own)]
    return [(urljoin(base, name), resource) for base in bases for name, resource in found] + own


# -- The time of a check
#
# A schema of 30 definitions, each of which refers to the next one twice, takes jsonschema hours for any value. The
# number of parts that are compared is not known before, so the processor time of the thread counts.

CHECK_CPU_S = 10.0
"""The most processor time for one value. A megabyte of 200,000 numbers takes about two seconds."""
_time = threading.local()


@contextmanager
def limit_check_time() -> Iterator[None]:
    """Context manager that limits the CPU time of a check by jsonschema.

    `refuse_after_time_limit` raises after `CHECK_CPU_S`.
    """
    _time.ends_s = time.thread_time() + CHECK_CPU_S
    try:
        yield
    finally:
        _time.ends_s = None


def refuse_after_time_limit() -> None:
    """Raise an error if the current check has used up the CPU time that `limit_check_time` allows.

    Raises:
        InvalidInputError: the time is used up.
    """
    ends_s = getattr(_time, "ends_s", None)
    if ends_s is not None and time.thread_time() > ends_s:
        raise InvalidInputError(
            f"the check took more than {CHECK_CPU_S:g} s of processor time: the schema refers to its parts too often, "
            "or the value is too large for it"
        )


# -- Patterns of a JSON Schema, which come from the registry: each search takes a bounded time
#
# Python's own engine takes years for the pattern `^(a+)+$` and forty characters. So RE2 searches, in time linear in the
# text. It lacks lookarounds and back references. For such a pattern the steps that Python's engine may take are counted
# first, and more than `STEPS_MAX` are refused.
#
# RE2 reads classes as Java and JavaScript do: `\d` and `\w` are ASCII, and `$` is the end of the text.

PATTERN_CHARS_MAX = 10_000
"""The longest pattern, in characters."""
PATTERNS_KEPT = 128
"""The most compiled patterns, of 512 KiB each: 64 MiB in all."""
STEPS_MAX = 10_000_000
"""The most steps of Python's engine for one text: about a third of a second."""
RE2_STEPS_MAX = 1_000_000_000
"""The most instructions of a pattern times characters of a text for RE2: 7 s, where its states do not fit in memory."""
_SHOWN_MAX = 100
_UNICODE_ESCAPE = re.compile(r"(\\\\)|\\u([0-9A-Fa-f]{4})")


@lru_cache(maxsize=PATTERNS_KEPT)
def _searcher(pattern: str) -> Callable[[str], bool]:
    """Compile a schema's pattern to a function that returns whether a text contains a match.

    Raises:
        re.error: the pattern is malformed.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidInputError(f"the schema has a pattern of more than {PATTERN_CHARS_MAX} characters")
    engine = load_re2()
    if engine is not None:
        escaped = _UNICODE_ESCAPE.sub(lambda found: found[1] or rf"\x{{{found[2]}}}", pattern)
        try:
            found = engine.compile(escaped, bounded_options(engine))
        except (engine.error, UnicodeEncodeError):
            pass  # Python's engine may know it, or have the memory for it
        else:
            return _re2_searcher(pattern, found)
    compiled = re.compile(pattern)

    def search_counted(text: str) -> bool:
        refuse_slow_pattern(pattern, len(text))
        return compiled.search(text) is not None

    return search_counted


def _re2_searcher(pattern: str, compiled: Any) -> Callable[[str], bool]:
    chars_max = RE2_STEPS_MAX // max(1, compiled.programsize, compiled.reverseprogramsize)

    def search_bounded(text: str) -> bool:
        if len(text) > chars_max:
            raise InvalidInputError(
                f"the schema's pattern {_shortened(pattern)!r} could take too long for a text of {len(text)} "
                f"characters: it is of a size that is searched for in {chars_max}"
            )
        return compiled.search(text) is not None

    return search_bounded


def _shortened(pattern: str) -> str:
    return pattern if len(pattern) <= _SHOWN_MAX else f"{pattern[:_SHOWN_MAX]}…"


def has_match(pattern: str, text: str) -> bool:
    """Return whether a text has a match of a schema's pattern.

    Raises:
        InvalidInputError: the search could take too long, or the check has.
        re.error: the pattern is malformed.
    """
    found = _searcher(pattern)(text)
    refuse_after_time_limit()
    return found


def refuse_slow_pattern(pattern: str, length: int) -> None:
    """Refuse a pattern that Python's engine could search for too long in a text of this many characters.

    Raises:
        InvalidInputError: it could take more than `STEPS_MAX` steps.
    """
    if count_regex_steps(pattern, length) > STEPS_MAX:
        raise InvalidInputError(
            f"the schema's pattern {_shortened(pattern)!r} could take too long for a text of {length} characters: RE2 "
            "can't search for it, because of a lookaround or a back reference, and repetitions within repetitions are "
            "bounded"
        )


@lru_cache(maxsize=1_024)
def count_regex_steps(pattern: str, length: int) -> int:
    """Return an upper bound of the steps in which Python's `re` searches a text of this length for a pattern.

    A bound above `STEPS_MAX` may be any larger number.

    Raises:
        re.error: the pattern is malformed.
    """
    parser: Any = importlib.import_module("re._parser")
    tree = [*parser.parse(pattern)]
    anchored = bool(tree) and str(tree[0][0]) == "AT" and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
    _, work = _sequence(tree, length)
    return _bounded(work + length if anchored else work * (length + 1))


def _bounded(number: int) -> int:
    return min(number, STEPS_MAX + 1)


def _sequence(items: Any, length: int) -> tuple[int, int]:
    """Return two upper bounds for a parsed pattern: the ways in which it can match at one position, and the steps.

    The steps are those of trying all the ways.
    """
    ways = work = 1
    for name, argument in items:
        item_ways, item_work = _item(str(name), argument, length)
        work = _bounded(work + ways * item_work)
        ways = _bounded(ways * item_ways)
    return ways, work


def _item(name: str, argument: Any, length: int) -> tuple[int, int]:
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        ways, work = _repeat(int(low), min(int(high), max(length, int(low))), _sequence(body, length))
        return (1 if name == "POSSESSIVE_REPEAT" else ways), work
    if name == "SUBPATTERN":
        return _sequence(argument[-1], length)
    if name == "ATOMIC_GROUP":
        return 1, _sequence(argument, length)[1]
    if name in ("ASSERT", "ASSERT_NOT"):
        return 1, _sequence(argument[1], length)[1]
    if name in ("BRANCH", "GROUPREF_EXISTS"):
        parts = argument[1] if name == "BRANCH" else [part for part in argument[1:] if part is not None]
        found = [_sequence(part, length) for part in parts]
        return _bounded(1 + sum(ways for ways, _ in found)), _bounded(1 + sum(work for _, work in found))
    return (1, 1 + length) if name.startswith("GROUPREF") else (1, 1)


def _repeat(low: int, high: int, body: tuple[int, int]) -> tuple[int, int]:
    ways, work = body
    if ways == 1:
        return _bounded(max(1, high - low + 1)), _bounded(1 + high * work)
    total, power, tried = 0, 1, 1
    for count in range(high + 1):
        total += power if count >= low else 0
        tried += power * work
        power *= ways
        if tried > STEPS_MAX:
            return STEPS_MAX + 1, STEPS_MAX + 1
    return _bounded(max(1, total)), _bounded(tried)


# -- The keywords of a schema whose work has to be bounded


@cache
def bounded_validator(kind: Any) -> Any:
    """Return a validator class of jsonschema whose checks take bounded time and memory."""
    from jsonschema.validators import extend

    keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "uniqueItems": _unique_items,
    }
    keywords = {name: check for name, check in keywords.items() if name in kind.VALIDATORS}
    if "disallow" in kind.VALIDATORS:
        keywords["type"] = _type_of_draft_3
    made = extend(kind, keywords)
    evolve = made.evolve

    def evolve_bounded(validator: Any, **changes: Any) -> Any:
        """Bound the validator of one part of a schema, which may name a draft of its own."""
        refuse_after_time_limit()
        found = evolve(validator, **changes)
        if isinstance(found, made):
            return found
        facts = {field.alias: getattr(found, field.name) for field in type(found).__attrs_attrs__ if field.init}
        draft: Any = type(found)
        return bounded_validator(draft)(**facts)

    made.evolve = evolve_bounded
    return made


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    del schema
    if validator.is_type(value, "string") and not has_match(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, schemas: Mapping[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    del schema
    if not validator.is_type(value, "object"):
        return
    for pattern, inner in schemas.items():
        for name, part in value.items():
            if has_match(pattern, name):
                yield from validator.descend(part, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    more = [name for name in value if name not in known and not any(has_match(pattern, name) for pattern in patterns)]
    if validator.is_type(allowed, "object"):
        for name in more:
            yield from validator.descend(value[name], allowed, path=name)
    elif not allowed and more:
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, more))}")


def _any_of(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Validate `anyOf` as jsonschema does, without collecting its errors, each of which contains the value."""
    from jsonschema import ValidationError

    del schema
    if all(next(validator.descend(value, part), None) is not None for part in schemas):
        yield ValidationError(f"{value!r} is not valid under any of the given schemas")


def _one_of(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Validate `oneOf` as jsonschema does, without collecting its errors."""
    from jsonschema import ValidationError

    del schema
    valid = sum(next(validator.descend(value, part), None) is None for part in schemas)
    if valid != 1:
        what = "is valid under more than one" if valid else "is not valid under any"
        yield ValidationError(f"{value!r} {what} of the given schemas")


def _type_of_draft_3(validator: Any, types: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Validate draft 3's `type`, which may be a schema, as jsonschema does, without collecting its errors."""
    from jsonschema import ValidationError

    del schema
    for kind in types if isinstance(types, list) else [types]:
        if isinstance(kind, dict):
            if next(validator.descend(value, kind), None) is None:
                return
        elif validator.is_type(value, kind):
            return
    yield ValidationError(f"{value!r} is of none of the types")


def _unique_items(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Validate `uniqueItems` in one pass; jsonschema compares all pairs, minutes for 10,000 objects."""
    from jsonschema import ValidationError

    del schema
    if wanted and validator.is_type(value, "array") and len({_identity(part) for part in value}) < len(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _identity(value: Any) -> Hashable:
    """Return a key that equal JSON values share: 1 and 1.0 are equal, 1 and true are not.

    Numbers become text, because others can choose numbers of equal hashes.
    """
    if isinstance(value, dict):
        return "object", frozenset((name, _identity(part)) for name, part in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_identity, value))
    if isinstance(value, bool | str | None):
        return type(value), value
    return "number", f"{int(value):x}" if value == value // 1 else repr(value)


def unbounded_patterns(schemas: Iterable[Any]) -> list[str]:
    """Return the patterns that jsonschema itself applies to property names with Python's `re`, without a time limit.

    For `unevaluatedProperties` it uses the patterns of all `patternProperties`. Empty if no schema has that keyword.

    Args:
        schemas: a schema, and those that it refers to.
    """
    found: dict[str, None] = {}
    is_needed, rest = False, [*schemas]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            is_needed = is_needed or "unevaluatedProperties" in part
            inner = part.get("patternProperties")
            found |= dict.fromkeys(inner) if isinstance(inner, dict) else {}
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [*found] if is_needed else []


def longest_name(value: Any) -> int:
    """Return the length of the longest name in parsed JSON."""
    longest, rest = 0, [value]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            longest = max(longest, *map(len, part), 0)
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return longest
