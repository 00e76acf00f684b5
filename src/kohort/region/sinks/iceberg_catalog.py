"""Catalogs of Iceberg tables: how they are opened, and what their errors mean.

pyiceberg asks a REST catalog without a limit on the time, and its errors repeat what servers say. `TimedRestCatalog`
waits for a bounded time. `translated_catalog_errors` translates errors, without their causes and without the catalog's
secrets: the cause of such an error has the request's address and the server's words.

Only the catalog itself says that a table does not exist. A gateway before it also answers 404 while the catalog is
away, so 404 counts only with the catalog's own error object.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.rest.response import ErrorResponse
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.utils.config import Config, merge_config
from requests import RequestException, Session
from requests.exceptions import InvalidHeader, InvalidSchema, InvalidURL, MissingSchema
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, NotAuthorizedError, RetriableError
from kohort.region.sinks.iceberg_files import ROOT, DurableFileIO
from kohort.settings.validation import is_secret

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
"""Limit on the time that a REST catalog may be silent. A commit that is given up is looked for before the next."""
_NAME: Final = "default"
_FILE_IO: Final = f"{DurableFileIO.__module__}.{DurableFileIO.__name__}"
_S3: Final = ("s3:", "s3a:", "s3n:")
"""The beginnings of the locations of stores of S3's protocol, as pyiceberg knows them."""
_FIXED: Final = {"snapshot-loading-mode": "all"}
"""Properties of a REST catalog that the sink counts on: it looks for files in all snapshots."""
_KEYS: Final = ("account-key", "connection-string")
"""Suffixes of the names of Azure's secret properties."""
_SECRET_CHARS_MIN: Final = 4
"""Shorter values are left in messages: removing them would garble the text."""
_AUTHORIZATION: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_READ_ONLY: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_NO_PROPERTIES: Final[Mapping[str, Any]] = MappingProxyType({})


class TimedRestCatalog(RestCatalog):
    """pyiceberg's REST catalog with timeouts: 10 s to connect and 60 s for the next byte of an answer."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self.properties.update(_FIXED)  # the server may have given others

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)  # before the session's first request
        timed = partial(session.request, timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S))
        session.request = timed  # type: ignore[method-assign]

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        table.io.properties[ROOT] = table.location()
        return table


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """Open the Iceberg catalog that these properties of pyiceberg describe; pyiceberg's errors pass."""
    given: dict[str, Any] = dict(properties)
    known = merge_config(Config().get_catalog_config(_NAME) or {}, given)
    kind, uri = str(known.get("type") or "").lower(), str(known.get("uri") or "")
    if "py-catalog-impl" not in given:
        _refuse_unsafe(kind, uri)
    if "py-catalog-impl" in given or not uri or (kind or ("rest" if uri.startswith("http") else "")) != "rest":
        if "py-io-impl" not in known and str(known.get("warehouse", "")).startswith(_S3):
            given["py-io-impl"] = _FILE_IO
        return load_catalog(_NAME, **given)
    known.setdefault("py-io-impl", _FILE_IO)
    return TimedRestCatalog(_NAME, **cast("dict[str, str]", known))


def _refuse_unsafe(kind: str, uri: str) -> None:
    """Refuse catalogs that can't commit exactly once: Hive's, and those in the memory of one process.

    pyiceberg commits to Hive under a lock that Hive drops after five minutes. A writer that slept for longer replaces
    the table's metadata with its own, and the commits since are lost.
    """
    if kind == "hive" or (not kind and uri.startswith("thrift:")):
        raise InvalidInputError(
            "A Hive catalog can lose sequences: pyiceberg's commit does not look whether its lock has expired. Give a "
            "REST catalog (Hive 4 serves one) or an SQL catalog"
        )
    if kind == "in-memory" or ":memory:" in uri or uri == "sqlite://":
        raise InvalidInputError("Each process would have a catalog of its own in its memory: give a file or a server")


def redact_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Return an error's text with the secrets of a catalog's properties replaced by `…`, and authorization headers too.

    A token that pyiceberg has fetched is in no property, and a login is encoded in a request's header.
    """
    for secret in sorted(_secrets(properties), key=len, reverse=True):
        text = text.replace(secret, "…")
    return _AUTHORIZATION.sub(r"\1 …", text)


def _secrets(properties: Mapping[str, Any]) -> set[str]:
    found = set[str]()
    for name, value in properties.items():
        if isinstance(value, Mapping):
            found |= _secrets(value)
        elif is_secret(name) or name.startswith(("header.", "credential")) or name.endswith(_KEYS):
            parts = {str(value), *str(value).split(":")}
            found |= parts | {part.strip() for part in parts} | {repr(part)[1:-1] for part in parts}
        elif login := str(value).partition("://")[2].rpartition("@")[0]:
            found |= {login, login.partition(":")[2]}
    return {secret for secret in found if len(secret) >= _SECRET_CHARS_MIN}


@contextlib.contextmanager
def translated_catalog_errors(place: str, properties: Mapping[str, Any] = _NO_PROPERTIES) -> Iterator[None]:
    """Translate errors of pyiceberg's catalogs inside the block to the package's own. An `OSError` of a file passes.

    Args:
        place: the sink's name, for messages.
        properties: the catalog's properties; secrets among them are removed from messages.
    """
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        said = redact_secrets(_line(error), properties)
        if not _is_catalogs(error):
            raise RetriableError(f"The catalog of {place} does not answer, another server does: {said}") from None
        raise type(error)(said) from None
    except (RESTError, RequestException, ValidationError) as error:
        raise _translated(error, place, properties) from None
    except NotImplementedError as error:
        raise InvalidInputError(f"The catalog of {place} lacks what the sink needs: {_line(error)}") from None
    except IntegrityError:
        raise
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code in _READ_ONLY:
            raise NotAuthorizedError(f"No right to write the catalog of {place}: {error.orig}") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CorruptDataError(f"The catalog of {place} is damaged, or no SQLite file: {error.orig}") from error
        raise RetriableError(f"The catalog of {place} does not answer: {error.orig}") from error
    except SQLAlchemyError as error:
        raise RetriableError(f"The catalog of {place} does not answer: {_line(error)}") from error


def _translated(error: Exception, place: str, properties: Mapping[str, Any]) -> KafkaError:
    said = redact_secrets(_line(error), properties)
    if isinstance(error, ValidationError):  # its text has the answer, which may have credentials for the store
        return RetriableError(f"The catalog of {place} gives an answer that can't be read as {error.title}")
    if isinstance(error, UnauthorizedError | ForbiddenError | OAuthError):
        return NotAuthorizedError(f"The catalog of {place} gives no right to it: {said}")
    if isinstance(error, BadRequestError):
        return InvalidInputError(f"The catalog of {place} refuses a request: {said}")
    if isinstance(error, InvalidHeader | InvalidSchema | InvalidURL | MissingSchema):
        return InvalidInputError(f"The catalog of {place} can't be asked: {said}")
    return RetriableError(f"The catalog of {place} does not answer: {said}")


def _is_catalogs(error: Exception) -> bool:
    """Return whether an error 404 comes from the catalog itself, by its error object, and not from a gateway before it.

    True for a catalog without HTTP, such as an SQL catalog.
    """
    response = getattr(error.__cause__, "response", None)
    if response is None:
        return True
    try:
        ErrorResponse.model_validate_json(response.text)
    except ValueError:
        return False
    return True


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
