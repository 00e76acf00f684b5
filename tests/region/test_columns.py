"""Tables whose columns come in another order, or without values, are rows of the same unit and of the same place."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from kohort.errors import InvalidInputError
from kohort.region.consuming.staging import RowStager
from kohort.region.sinks import Keep
from kohort.region.sinks.columns import reorder_columns
from tests.region.places import REGION, Place, kinds

KINDS = {place.kind: place for place in kinds()}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = KINDS[request.param]
    made.at(tmp_path / "first")
    return made


def published(place: Place, stager: RowStager, sequence: int) -> int:
    """Publishes what was submitted; how many units it was."""
    keys = stager.stage_rest()
    stager.forget_contribution()
    sink = place.sink()
    sink.publish(sequence, keys)
    sink.sweep(Keep(0))
    return len(keys)


def test_columns_in_another_order_go_into_the_same_unit(place: Place) -> None:
    """Each `submit` was a file: 400 in a sequence, and a fifth of the rate."""
    stager, chance = RowStager(place.sink(), REGION, "worker-1"), random.Random(1)
    stager.begin_epoch(1)
    for number in range(40):
        columns = [("id", [number]), ("name", [str(number)])]
        chance.shuffle(columns)
        stager.add(pa.table(dict(columns)))
    assert published(place, stager, 1) == 1
    assert place.rows() == [(number, str(number)) for number in range(40)]


def test_column_without_values_is_of_the_type_that_the_place_knows(place: Place) -> None:
    sink = place.sink()
    stager = RowStager(sink, REGION, "worker-1")
    stager.begin_epoch(1)
    stager.add(pa.table({"id": [1], "name": ["a"]}))
    stager.add(pa.table({"name": pa.nulls(1), "id": [2]}))
    assert published(place, stager, 1) == 1
    begins_with_nulls = RowStager(place.sink(), REGION, "worker-2")
    begins_with_nulls.begin_epoch(2)
    begins_with_nulls.add(pa.table({"name": pa.nulls(1), "id": [3]}))
    begins_with_nulls.add(pa.table({"id": [4], "name": ["d"]}))
    begins_with_nulls.add(pa.table({"id": [5], "name": pa.nulls(1)}))
    assert published(place, begins_with_nulls, 2) <= 2
    assert sorted(place.rows(), key=lambda row: row[0]) == [(1, "a"), (2, None), (3, None), (4, "d"), (5, None)]


def test_first_table_has_to_say_the_types(place: Place) -> None:
    """A guess would be fixed for ever: the error says how to give the type."""
    for untyped in (pa.nulls(1), pa.array([[]], pa.list_(pa.null()))):
        with pytest.raises(InvalidInputError, match="type of 'name'.*schema=schema"):
            place.sink().check(pa.table({"id": [1], "name": untyped}).schema)
    place.sink().check(pa.schema([("id", pa.int64()), ("name", pa.string())]))


def test_delta_table_that_was_there_says_the_types(tmp_path: Path) -> None:
    import deltalake

    place = KINDS["delta"]
    place.at(tmp_path)
    deltalake.write_deltalake(str(tmp_path / "out"), pa.table({"id": [1], "name": ["a"]}))
    place.sink().check(pa.table({"id": [1], "name": pa.nulls(1)}).schema)


KEPT = pa.schema([
    ("a", pa.int64()), ("b", pa.list_(pa.string())), ("c", pa.struct([("x", pa.int64()), ("y", pa.string())])),
])  # fmt: skip


def test_nested_columns_without_values() -> None:
    given = pa.Table.from_pylist([{"c": {"x": 1, "y": None}, "b": [], "a": 1}])
    assert given.schema.field("b").type == pa.list_(pa.null())
    arranged = reorder_columns(given, KEPT)
    assert arranged is not None and arranged.schema.equals(KEPT) and arranged.to_pylist() == given.to_pylist()


@pytest.mark.parametrize(
    "given",
    [
        pa.table({"a": [1], "b": [["x"]]}),
        pa.table({"a": ["1"], "b": [["x"]], "c": [{"x": 1, "y": ""}]}),
        pa.table({"a": [1], "b": [[1]], "c": [{"x": 1, "y": ""}]}),
        pa.table({"a": [1], "b": [["x"]], "c": [{"x": 1}]}),
        pa.table([[1], [1], [["x"]], [None]], names=["a", "a", "b", "c"]),
    ],
)
def test_other_columns_and_types_are_not_arranged(given: pa.Table) -> None:
    """The sink says what does not fit."""
    assert reorder_columns(given, KEPT) is None


def test_null_is_not_arranged_where_none_may_be() -> None:
    kept = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert reorder_columns(pa.table({"a": pa.nulls(1)}), kept) is None
    assert reorder_columns(pa.table({"a": pa.nulls(1)}), pa.schema([("a", pa.null())])) is not None


def test_key_column_without_values_is_refused(tmp_path: Path) -> None:
    place = KINDS["sqlite-update"]
    place.at(tmp_path)
    stager = RowStager(place.sink(), UUID(int=REGION.int), "worker-1")
    stager.begin_epoch(1)
    stager.add(pa.table({"id": [1], "name": ["a"]}))
    with pytest.raises(InvalidInputError, match="Null in columns that may not be: id"):
        stager.add(pa.table({"id": pa.nulls(1), "name": ["b"]}))
