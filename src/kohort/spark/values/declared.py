"""What a query says about its values: checked when it is declared, turned into types once Spark has parsed them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec

from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from kohort.errors import InvalidInputError
from kohort.spark.options import SourceOptions
from kohort.spark.values.decoding import Values
from kohort.spark.values.moments import zone_named
from kohort.spark.values.types import arrow_type, ddl_of

_ONE_TYPE = re.compile(r"\s*(?:(?:array|map|struct)\s*<.*>|\w+\s*(?:\([\d\s,]*\))?)\s*", re.IGNORECASE | re.DOTALL)
"""A type by itself, as INT, DECIMAL(10, 2) or ARRAY<INT>; anything else is a list of fields."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The value's format and type.

    Attributes:
        ddl: the type as Spark's parser reads it.
        avro: schemas, with the format avro.
    """

    format: str
    on_bad: str
    zone: str
    ddl: str
    avro: str | None = None
    writer_schemas: str | None = None

    def values(self, schema: StructType, columns: tuple[str, ...]) -> Values:
        """What tasks need to know.

        Args:
            schema: the source's, as Spark has parsed it.
            columns: the names that it must have.

        Raises:
            InvalidInputError: the type is none that values can have, or the text was more than one type.
        """
        if tuple(schema.fieldNames()) != columns:
            raise InvalidInputError(
                f"the columns are {', '.join(schema.fieldNames())}, and not {', '.join(columns)}: valueSchema must be "
                "one type, or fields as in `a INT, b STRING`, and the read can't have a schema of its own"
            )
        return Values(self.format, arrow_type(schema["value"].dataType), self.on_bad, self.zone)


def declare(options: SourceOptions) -> Declared | None:
    """The options about values, checked; None: values stay bytes.

    Raises:
        InvalidInputError: options that do not belong together, a schema that can't be, a library that is not installed.
    """
    form, text = options.value_format, options.value_schema
    if form is None:
        for name, given in (
            ("valueSchema", text is not None),
            ("onBadRecord", options.on_bad_record != "fail"),
            ("valueTimeZone", options.value_time_zone is not None),
            ("valueWriterSchemas", options.value_writer_schemas is not None),
        ):
            if given:
                raise InvalidInputError(f"the option {name} needs valueFormat: string, json or avro")
        return None
    for name, given, only in (
        ("valueTimeZone", options.value_time_zone, "json"),
        ("valueWriterSchemas", options.value_writer_schemas, "avro"),
    ):
        if given is not None and form != only:
            raise InvalidInputError(f"the option {name} belongs to valueFormat={only}, and valueFormat is {form}")
    if form == "string":
        if text is not None:
            raise InvalidInputError("valueFormat=string takes no valueSchema: values are strings as they are")
        return Declared(form, options.on_bad_record, "UTC", "string")
    if text is None or not text.strip():
        raise InvalidInputError(
            f"valueFormat={form} needs valueSchema: fields as in `a INT, b STRING`, or one type as ARRAY<INT>"
            + (", or an Avro schema" if form == "avro" else "")
        )
    return Declared(form, options.on_bad_record, _zone(options.value_time_zone), _ddl(text))


def _zone(name: str | None) -> str:
    try:
        return str(zone_named(name or "UTC"))
    except ValueError:
        raise InvalidInputError(
            f"valueTimeZone: there is no time zone {name!r}; give a name like Europe/Berlin"
        ) from None


def _ddl(text: str) -> str:
    """The type in DDL, which Spark's own parser checks as soon as the source tells its schema."""
    if text.lstrip().startswith("{"):
        return ddl_of(_from_json(text))
    return text.strip() if _ONE_TYPE.fullmatch(text) else f"struct<{text.strip()}>"


def _from_json(text: str) -> DataType:
    """A type from the text that Spark's `DataType.json()` gives."""
    try:
        return _parse_datatype_json_string(json.dumps(json.loads(text)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInputError("valueSchema begins with { and is not what StructType.json() gives") from None


def need_fastavro() -> None:
    """Raises:
    InvalidInputError: it is not installed.
    """
    if find_spec("fastavro") is None:
        raise InvalidInputError(
            "valueFormat=avro needs fastavro, here and in Spark's workers: pip install 'kohort[spark]'"
        )
