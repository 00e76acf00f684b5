"""The Arrow types are those that Spark compares a batch with, and DDL comes back as the type that it was."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from kohort.errors import InvalidInputError
from kohort.spark.values.types import arrow_type, ddl_of

EVERY = spark.StructType(
    [
        spark.StructField("i8", spark.ByteType()),
        spark.StructField("i16", spark.ShortType()),
        spark.StructField("i32", spark.IntegerType(), nullable=False),
        spark.StructField("i64", spark.LongType()),
        spark.StructField("f32", spark.FloatType()),
        spark.StructField("f64", spark.DoubleType()),
        spark.StructField("yes", spark.BooleanType()),
        spark.StructField("text", spark.StringType()),
        spark.StructField("bytes", spark.BinaryType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("sum", spark.DecimalType(38, 18)),
        spark.StructField("list", spark.ArrayType(spark.ArrayType(spark.IntegerType()), containsNull=True)),
        spark.StructField("map", spark.MapType(spark.StringType(), spark.ArrayType(spark.DateType()))),
        spark.StructField("a `quoted` name", spark.StructType([spark.StructField("x, y: z", spark.LongType())])),
    ]
)


def test_the_arrow_types_are_those_that_spark_expects() -> None:
    ours = arrow_type(EVERY)
    theirs = to_arrow_schema(spark.StructType([spark.StructField("value", EVERY)]), timezone="UTC").field("value").type
    assert ours.equals(theirs)
    assert str(ours) == str(theirs)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
def test_sparks_parser_reads_our_ddl_as_the_type(spark: Any) -> None:
    parsed = spark.createDataFrame([], f"`value` {ddl_of(EVERY)}").schema["value"].dataType
    assert parsed == EVERY


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (spark.MapType(spark.IntegerType(), spark.StringType()), "the map value has keys of type int"),
        (spark.ArrayType(spark.VariantType()), r"value\[\] can't be variant"),
        (spark.StructType([spark.StructField("a", spark.DayTimeIntervalType())]), "value.a can't be interval"),
        (spark.StructType([]), "must have fields"),
    ],
)
def test_a_type_that_values_can_not_have_is_named(kind: spark.DataType, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        arrow_type(kind)
