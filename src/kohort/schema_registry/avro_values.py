"""Avro values behind a schema's id, as Python objects, by fastavro."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.schema_registry.avro_limits import avro_schema
from kohort.schema_registry.prefix import PREFIX_BYTES, VALUE_BYTES, schema_prefix


def avro_reader(text: str, name: str) -> Callable[[bytes], Any]:
    """Return a function that reads values of a schema, which begin with a schema's id.

    Args:
        text: the schema.
        name: names the schema in errors.

    Raises:
        InvalidInputError: the schema is invalid, or a hostile value could abuse it.
    """
    schema = _parsed(text, name)
    from fastavro import schemaless_reader

    def read_value(data: bytes) -> Any:
        if len(data) > VALUE_BYTES:
            raise CorruptDataError(f"{len(data)} bytes are more than the {VALUE_BYTES} that are read")
        stream = io.BytesIO(data)
        stream.seek(PREFIX_BYTES)
        try:
            found = schemaless_reader(stream, schema, None)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (damaged bytes make it raise nearly anything)
            raise CorruptDataError(f"no value of {name}: {type(error).__name__}: {str(error)[:200]}") from None
        if stream.tell() != len(data):
            raise CorruptDataError(f"no value of {name}: {len(data) - stream.tell()} bytes follow it")
        return found

    return read_value


def avro_writer(text: str, number: int) -> Callable[[Any], bytes]:
    """Return a function that writes values of a schema behind its id.

    Args:
        text: the schema.
        number: the schema's id.

    Raises:
        InvalidInputError: the schema is invalid.
    """
    schema = _parsed(text, "the schema")
    from fastavro import schemaless_writer
    from fastavro.validation import ValidationError, validate

    prefix = schema_prefix(number)

    def write_value(value: Any) -> bytes:
        stream = io.BytesIO()
        stream.write(prefix)
        try:
            validate(value, schema)  # the writer alone takes 2^40 for an int
            schemaless_writer(stream, schema, value, strict_allow_default=True)
        except ValidationError as error:
            raise InvalidInputError(f"the value is not of the schema: {_first_reason(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise InvalidInputError(f"the value is not of the schema: {type(error).__name__}: {error}") from None
        return stream.getvalue()

    return write_value


def _parsed(text: str, name: str) -> Any:
    """Parse a schema for fastavro.

    Raises:
        InvalidInputError: it is invalid, or fastavro is not installed.
    """
    made = avro_schema(text, name)
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError:
        raise InvalidInputError("Avro values need fastavro: pip install 'kohort[registry]'") from None
    try:
        return parse_schema(made)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(f"{name} is no Avro schema: {type(error).__name__}: {error}") from None


def _first_reason(error: Any) -> str:
    """Return the first reason of a validation, without the value's other parts."""
    return str(next(iter(error.errors), error)).strip()[:200]
