"""A query that can't be: what it is refused with, said where Spark passes it on.

Spark's runner answers what `DataSource.streamReader` raises with an UnboundLocalError of its own; what a reader's
method raises reaches the application as it is.
"""

# ruff: noqa: N802 (the methods' names are Spark's)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what the query is refused with, whichever of its methods Spark calls first."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self.error.with_traceback(None) from None
