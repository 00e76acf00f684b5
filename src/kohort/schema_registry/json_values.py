"""JSON values with a schema id before them. Before a value is written, jsonschema checks it against its JSON Schema."""

from __future__ import annotations

import json  # not msgspec, without which clients start
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.schema_registry.prefix import PREFIX_BYTES, check_size, schema_prefix

_REASON_MAX = 200
"""Characters of a reason, which has the value in it."""
_ODD_SCHEMA = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, re.error)
"""Errors of jsonschema that are no answer: a reference to a number, a malformed pattern of draft 4, a number that no
float can have beside `multipleOf`.
"""


def json_value(data: bytes, max_bytes: int) -> Any:
    """Return the JSON after the schema id of a value, without a check against its schema.

    Raises:
        CorruptDataError: the value is too large, or no JSON.
    """
    check_size(data, max_bytes)
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
    check = json_check(text, imports)
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


def json_check(text: str, imports: tuple[tuple[str, str], ...] = ()) -> Callable[[Any], None]:
    """Return a function that compares parsed JSON with a JSON Schema, and raises InvalidInputError if it differs.

    References within the schema, and to those that it is given, are followed. Nothing is fetched. `format` is not
    checked.

    Args:
        text: the schema.
        imports: the schemas that it refers to: the name of each, and its text. A name is one beside the `$id` of
            a schema, as for Confluent's serializers.

    Raises:
        InvalidInputError: the schema is invalid, or jsonschema is not installed.
    """
    try:
        from jsonschema import Draft7Validator, SchemaError
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
        kind.check_schema(schema)
        known = REGISTRY.with_resources(_named(schema, imports))  # the default fetches references by HTTP
    except SchemaError as error:
        raise InvalidInputError(f"no JSON Schema: {error.json_path}: {error.message[:_REASON_MAX]}") from None
    except _ODD_SCHEMA as error:
        raise InvalidInputError(f"no JSON Schema: {str(error)[:_REASON_MAX]}") from None
    validator = kind(schema, registry=known)

    def check_value(value: Any) -> None:
        try:
            error = next(validator.iter_errors(value), None)
        except Unresolvable as missing:
            raise InvalidInputError(
                f"the schema refers to {missing.ref[:_REASON_MAX]}, which it does not have: nothing is fetched"
            ) from None
        except RecursionError:
            raise InvalidInputError("the schema refers to itself without an end, or the value is too deep") from None
        except _ODD_SCHEMA as odd:
            text = f"{type(odd).__name__}: {str(odd)[:_REASON_MAX]}"
            raise InvalidInputError(f"the value can't be compared with the schema: {text}") from None
        if error is not None:
            raise InvalidInputError(f"the value is not of the schema: {error.json_path}: {error.message[:_REASON_MAX]}")

    return check_value


def _named(schema: Any, imports: tuple[tuple[str, str], ...]) -> list[tuple[str, Any]]:
    """Return the schemas that a schema refers to, each by all names that it may have; the last of a name counts."""
    from referencing import Resource
    from referencing.jsonschema import DRAFT7

    found = [(name, Resource.from_contents(json.loads(text), default_specification=DRAFT7)) for name, text in imports]
    own = [*found, *((identity, resource) for _, resource in found if (identity := resource.id()))]
    base = schema.get("$id", schema.get("id")) if isinstance(schema, dict) else None
    bases = [*([base] if isinstance(base, str) else []), *(name for name, _ in own)]
    return [(urljoin(base, name), resource) for base in bases for name, resource in found] + own
