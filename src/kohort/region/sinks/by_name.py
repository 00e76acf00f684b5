"""Creation of a sink from the name of its destination, as an operator gives it, to read or to adopt it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from kohort.errors import InvalidInputError
from kohort.region.files import is_store_url
from kohort.region.sinks import Sink
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.sinks.sql_table import SqlTable
from kohort.settings.validation import redacted_url

_Stored = TypeVar("_Stored", bound=Sink)


def sink_of(place: str) -> Sink:
    """Return a sink for the name of its destination, such as `parquet:/data/out`, with default options.

    Raises:
        InvalidInputError: the name is not one of this package's sinks, or can't be resolved to one.
    """
    kind, _, rest = place.partition(":")
    if kind == "parquet" and rest:
        return parquet_folder_from_name(rest)
    if kind == "delta" and rest:
        from kohort.region.sinks.delta_table import DeltaTable  # an extra of the package

        return DeltaTable(rest) if not is_store_url(rest) else _stored(DeltaTable, rest)
    url, _, table = rest.rpartition("#")
    if kind == "iceberg" and url.startswith("/") and table:
        from kohort.region.sinks.iceberg_table import IcebergTable  # an extra of the package

        return IcebergTable(table, warehouse=url)
    if kind == "ducklake" and url.startswith("/") and table:
        from kohort.region.sinks.ducklake_table import DuckLakeTable  # an extra of the package

        return DuckLakeTable(table, lake=url)
    servers, _, topic = rest.rpartition("/")
    if kind == "kafka" and servers and topic:
        from kohort.region.sinks.kafka_topic import KafkaTopic  # pulls in the client

        return KafkaTopic(servers, topic)
    if kind == "sql" and "://" in url and table:
        return SqlTable(_with_options(url), table)
    raise InvalidInputError(
        f"{redacted_url(place)!r} names no sink that can be reached by its name: give parquet:/folder, "
        "parquet:s3://bucket/folder, delta:/folder, delta:s3://bucket/table, iceberg:/warehouse#namespace.table, "
        "ducklake:/lake#schema.table, sql:sqlite:////file.db#table, sql:postgresql://host:port/database#table (the "
        "user by PGUSER) or kafka:host:port/topic; for any other call Region.adopt with the sink"
    )


def parquet_folder_from_name(name: str) -> ParquetFolder:
    """Return the Parquet folder for a path, an object store's URL, or a name as in `ObjectStore.name`.

    In the latter, `[…]` behind the URL names the server or the account.
    """
    return ParquetFolder(name) if not is_store_url(name) else _stored(ParquetFolder, name)


def _stored(kind: Callable[..., _Stored], name: str) -> _Stored:
    from kohort.region.sinks.object_store import split_store_name  # an extra of the package

    url, options = split_store_name(name)
    return kind(url, storage_options=options)


def _with_options(url: str) -> str:
    """Rewrite the parameter `search_path` of a PostgreSQL URL as `options=-csearch_path=…` for libpq.

    A URL of SQLite is returned unchanged.
    """
    if url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if path := given.pop("search_path", ""):
        given["options"] = f"-csearch_path={path}"
    return urlunsplit(parts._replace(query=urlencode(given)))
