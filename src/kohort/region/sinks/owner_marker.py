"""The owner marker of a folder: its region and the schema of its rows, in one small file that is written once.

Columns that are added later are in files beside it, each written once too.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import uuid
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import FileCalls, read_file, remove_file, sync_folder, write_file

CLAIM = "region.json"
_ADDED = "columns-"
"""Prefix of the files that name added columns: `columns-1.json` is the first."""
UNFINISHED = ".part"
"""Suffix of files that are not completely written yet."""
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for bytes that are not the JSON that was expected: also for text that is not UTF-8, and for
thousands of nested lists."""


class OwnerMarker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record in a destination of which region writes there, with the schema of its rows; in folders `region.json`.

    Attributes:
        format: the format's version, 1.
        region: the region's name, for humans.
        id: the region's id, which identifies it.
        schema: the schema of all rows, serialised by Arrow, in base64.
        keys: the columns by which rows replace one another; empty: they don't.
        partition_by: the columns that partition the rows.
        alone: whether the table had no rows when the region began to write.
        place: the sink's name when it was first written or adopted; another name is refused.
        added: the columns that `evolve="add"` has added; tables may leave them out.
    """

    format: int
    region: str
    id: UUID
    schema: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    alone: bool = False
    place: str = ""
    added: tuple[str, ...] = ()

    def row_schema(self) -> pa.Schema:
        """Deserialise the schema of the destination's rows."""
        return decode_schema(self.schema)


def encode_schema(schema: pa.Schema) -> str:
    """Serialise a schema, without its metadata, by Arrow and base64."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Deserialise a schema from the text that `encode_schema` returns.

    Raises:
        CorruptDataError: the text is no schema.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise CorruptDataError(f"A schema can't be read: {error}") from error


def read_owner_marker(files: FileCalls, folder: str) -> OwnerMarker:
    """Read the owner marker of a folder.

    Raises:
        FileNotFoundError: there is no marker yet.
        InvalidInputError: a newer kohort has written it.
        CorruptDataError: the marker can't be read.
    """
    return decode_owner_marker(read_file(files, f"{folder}/{CLAIM}"), folder)


def encode_owner_marker(claim: OwnerMarker) -> bytes:
    """Encode an owner marker as JSON."""
    return msgspec.json.format(msgspec.json.encode(claim), indent=1)


def decode_owner_marker(data: bytes, folder: str) -> OwnerMarker:
    """Decode an owner marker from JSON; `folder` is for messages.

    Raises:
        InvalidInputError: a newer kohort has written it.
        CorruptDataError: the marker can't be read.
    """
    try:
        claim = msgspec.json.decode(data, type=OwnerMarker)
        if claim.format != 1:
            raise InvalidInputError(f"{folder} was written by a newer kohort, in format {claim.format}")
        claim.row_schema()
    except (*UNREADABLE_JSON, CorruptDataError) as error:
        raise CorruptDataError(f"{folder}/{CLAIM} can't be read: {error}") from error
    return claim


def write_owner_marker(files: FileCalls, folder: str, claim: OwnerMarker) -> None:
    """Create a folder's `region.json`, unless it exists. The caller must sync the folder afterwards."""
    _write_once(files, f"{folder}/{CLAIM}", encode_owner_marker(claim))


def replace_owner_marker(files: FileCalls, folder: str, claim: OwnerMarker) -> None:
    """Replace a folder's `region.json` atomically and durably."""
    temporary = f"{folder}/{uuid.uuid4().hex}{UNFINISHED}"
    try:
        write_file(files, temporary, encode_owner_marker(claim))
        files.rename(temporary, f"{folder}/{CLAIM}")
        sync_folder(files, folder)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(files, temporary)
        raise


class _AddedColumns(msgspec.Struct, frozen=True):
    """The content of `columns-N.json`, which `evolve="add"` has created: the columns of the Nth addition.

    Attributes:
        format: the format's version, 1.
        schema: the columns, as a schema that is serialised by Arrow, in base64.
    """

    format: int
    schema: str


def read_marker_with_columns(read: Callable[[str], bytes], folder: str) -> tuple[OwnerMarker, int]:
    """Read a folder's owner marker, and add the columns of its files `columns-N.json` to the marker's schema.

    Args:
        read: returns the content of a file, or raises FileNotFoundError.
        folder: the folder.

    Returns:
        The marker, and the number of files `columns-N.json`.

    Raises:
        FileNotFoundError: there is no marker yet.
        InvalidInputError: a newer kohort has written a file.
        CorruptDataError: the marker, or a file of columns, can't be read.
    """
    claim, number = decode_owner_marker(read(f"{folder}/{CLAIM}"), folder), 0
    fields, added = list(claim.row_schema()), list(claim.added)
    while True:
        path = added_columns_path(folder, number + 1)
        try:
            found = msgspec.json.decode(read(path), type=_AddedColumns)
            columns = decode_schema(found.schema)
        except FileNotFoundError:
            break
        except (*UNREADABLE_JSON, CorruptDataError) as error:
            raise CorruptDataError(f"{path} can't be read: {error}") from error
        if found.format != 1:
            raise InvalidInputError(f"{path} was written by a newer kohort, in format {found.format}")
        fields += columns
        added += columns.names
        number += 1
    if not number:
        return claim, 0
    return msgspec.structs.replace(claim, schema=encode_schema(pa.schema(fields)), added=tuple(added)), number


def added_columns_path(folder: str, number: int) -> str:
    """Return the path of `columns-N.json` with the columns of the Nth addition to a folder's schema."""
    return f"{folder}/{_ADDED}{number}.json"


def encode_added_columns(columns: Iterable[pa.Field[Any]]) -> bytes:
    """Encode columns as the content of `columns-N.json`."""
    return msgspec.json.encode(_AddedColumns(1, encode_schema(pa.schema(columns))))


def try_add_columns(files: FileCalls, folder: str, number: int, columns: Iterable[pa.Field[Any]]) -> bool:
    """Create `columns-N.json` durably: the columns that are added to the schema in a folder's owner marker.

    Args:
        files: the file operations.
        folder: the folder of the marker.
        number: N; the first addition has 1.
        columns: the added columns.

    Returns:
        False if another process has created that file first.
    """
    if not _write_once(files, added_columns_path(folder, number), encode_added_columns(columns)):
        return False
    sync_folder(files, folder)
    return True


def _write_once(files: FileCalls, path: str, data: bytes) -> bool:
    """Create a file atomically, unless it exists; return whether this call did. The caller must sync the folder."""
    temporary = f"{os.path.dirname(path)}/{uuid.uuid4().hex}{UNFINISHED}"
    try:
        write_file(files, temporary, data)
        try:
            files.link(temporary, path)
        except FileExistsError:
            return False
        return True
    finally:
        with contextlib.suppress(OSError):
            remove_file(files, temporary)


def other_name_error(region: str, stored_name: str, own_identity: str) -> InvalidInputError:
    """Return the error for a sink whose name (`own_identity`) is not the one in its destination (`stored_name`)."""
    return InvalidInputError(
        f"{own_identity} is the place that region {region!r} knows as {stored_name}: rows staged under two names would "
        "be lost. Give all members the name that the region knows; if the place has moved there for good, end the "
        f"region's applications and run `kohort region adopt {region} {shlex.quote(own_identity)} --execute`"
    )


def other_owner_error(place: str, owner: tuple[str, UUID], mine: tuple[str, UUID], remedy: str) -> InvalidInputError:
    """Return the error for a destination that belongs to another region; regions are given by name and id."""
    other = f"region {owner[0]!r}"
    if owner[0] == mine[0]:
        other = f"another region of the name {owner[0]!r}, one that was deleted or is on another cluster"
    return InvalidInputError(
        f"{place} belongs to {other} ({owner[1]}), not to region {mine[0]!r} ({mine[1]}): {remedy}"
    )
