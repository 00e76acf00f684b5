"""Objects of a store (S3, Google Cloud Storage, Azure) below one URL, as sinks need them.

The library's own retries are off. With them a lost answer turns a successful conditional put into a refusal (obstore
0.12): the second request finds the object of the first. `ObjectStore.create_object_if_absent` therefore reads the
object after any error, and its caller compares.

Each object is put in one request, so that no multipart upload can be left behind. Stores accept 5 GB in one request; a
unit of staged rows has 32 MiB.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError
from kohort.settings.validation import redacted_url

try:
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotSupportedError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import from_url
except ImportError as error:
    raise InvalidInputError(f"Object stores need the package obstore: pip install 'kohort[lake]' ({error})") from error

_URL: Final = re.compile(r"(s3a?|gs|az)://([^/]+)(?:/(.*))?", re.IGNORECASE | re.DOTALL)
_REFUSED: Final = re.compile(r"[\x00-\x20?#*\[\]{}%\\\x7f]")
"""Characters that readers take for a pattern or for a part of the URL."""
_CLIENT: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "timeout",
        "user_agent",
    }
)
"""Options of the HTTP client. obstore 0.12 aborts with a panic if they are among those of the store."""
_TIMEOUTS: Final = {"timeout": "120s", "connect_timeout": "10s"}
_S3_ENDPOINTS: Final = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url")
_AZURE_ENDPOINTS: Final = ("endpoint", "azure_endpoint", "azure_storage_endpoint")
_AZURE_ACCOUNTS: Final = ("account_name", "azure_account_name", "azure_storage_account_name")
_ACCOUNT: Final = "account "
_SECRET: Final = re.compile("secret|key|token|password|sas|credential|account", re.IGNORECASE)
_MISSING: Final = "status code: 404"
_DENIED: Final = re.compile("status code: 40[13]")
"""Refusals of a listing, which the library does not tell from other errors."""
_QUERY: Final = re.compile(r"\?[^\s)>\"']*")
_USER: Final = re.compile(r"(?<=//)[^/\s]*@")
_BODY: Final = re.compile(r"(status code: \d{3}(?: [A-Za-z' -]+)?).*")
"""A refusal. What follows is the server's answer, which may repeat the request with its headers."""
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
"""The name of an error in the answer of a store."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_STATUS: Final = re.compile(r"\d{3} [A-Za-z' -]+")
_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_")
_FILES: Final = ("_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
"""The ends of variables that name a file, which errors show."""
_RACERS: Final = 16
"""Number of puts that race for one name. Some servers refuse a calm second put, and let most of 32 racers win."""
Content = TypeVar("Content", bytes, memoryview)
_THREADS: Final = 16
_FEW: Final = 4


class _StoreUrl(NamedTuple):
    """The scheme, bucket and path of an object store's URL."""

    scheme: str
    bucket: str
    prefix: str

    def to_url(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def _parsed(url: str) -> _StoreUrl:
    found = _URL.fullmatch(url)
    if found is None:
        raise InvalidInputError(
            f"{redacted_url(url)} is no URL of an object store: give s3://, gs:// or az://, a bucket and a path"
        )
    scheme, bucket, prefix = found[1].lower(), found[2], (found[3] or "").rstrip("/")
    if "@" in bucket or ":" in bucket:
        raise InvalidInputError(
            "A URL of an object store holds no credentials and no host: name them in storage_options, or in the "
            "environment"
        )
    parts = prefix.split("/") if prefix else []
    if _REFUSED.search(bucket + prefix) or any(part in ("", ".", "..") for part in parts):
        raise InvalidInputError(
            f"{redacted_url(url)} has an empty part, or a character that readers take for a pattern"
        )
    return _StoreUrl("s3" if scheme == "s3a" else scheme, bucket, prefix)


def split_store_name(name: str) -> tuple[str, dict[str, str]]:
    """Split `ObjectStore.name`, such as `s3://bucket/path[endpoint]`, into the URL and options (endpoint, account).

    Credentials are not part of the name; they come from the environment.
    """
    url, _, where = name.removesuffix("]").partition("[")
    options: dict[str, str] = {}
    for part in filter(None, where.split(", ")):
        if part.startswith(_ACCOUNT):
            options["account_name"] = part.removeprefix(_ACCOUNT)
        else:
            options["base_url" if url.startswith("gs:") else "endpoint"] = part
            if part.lower().startswith("http:"):
                options["allow_http"] = "true"
    return url, options


class ObjectStore:
    """A client for the objects below one URL of an object store.

    It can be pickled; each process opens its own connections.

    All methods raise `NotAuthorizedError` for a missing permission, and `RetriableError` if the store does not answer.
    No error's text has a credential.

    Attributes:
        url: the URL, without credentials.
        name: the URL, with the endpoint in `[…]` if it is not the provider's own, or with Azure's account. Different
            places have different names. One place may have two, for example by two endpoints.
    """

    _opened: tuple[int, Any] | None = None

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = _parsed(url)
        self.url = self._url.to_url()
        self._options = {name.lower(): str(value) for name, value in options.items()}
        for name in _CLIENT:
            for prefix in ("aws_", "azure_", "google_"):
                if prefix + name in self._options:
                    self._options[name] = self._options.pop(prefix + name)
        found = self._resolved()
        self.name = self.url + (f"[{', '.join(found)}]" if found else "")

    def _resolved(self) -> list[str]:
        """Return the endpoint or account, if any, that tells this bucket from one of the same name elsewhere."""
        if self._url.scheme == "gs":
            base = self._taken(("base_url", "google_base_url"), "GOOGLE_BASE_URL")
            return [self._endpoint(base, "GOOGLE_ALLOW_HTTP", "base_url")] if base else []
        if self._url.scheme == "s3":
            endpoint = self._taken(_S3_ENDPOINTS, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            return [self._endpoint(endpoint, "AWS_ALLOW_HTTP")] if endpoint else []
        account = self._taken(_AZURE_ACCOUNTS, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
        if account:
            self._options["account_name"] = account
        endpoint = self._taken(_AZURE_ENDPOINTS, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        found = [self._endpoint(endpoint, "AZURE_ALLOW_HTTP")] if endpoint else []
        return found + ([f"{_ACCOUNT}{account}"] if account else [])

    def _taken(self, names: Sequence[str], *variables: str) -> str:
        """Remove an option that has several spellings, and return its value.

        Without such an option, return that of the first environment variable that is set; else an empty text.
        """
        given = [value for name in names if (value := self._options.pop(name, ""))]
        return next(iter((*given, *(os.environ[name] for name in variables if os.environ.get(name)))), "")

    def _endpoint(self, endpoint: str, variable: str, option: str = "endpoint") -> str:
        parts = urlsplit(endpoint)
        if "@" in endpoint or parts.query:
            raise InvalidInputError("The endpoint of an object store holds credentials: name them as options")
        if os.environ.get(variable):
            self._options.setdefault("allow_http", os.environ[variable])
        if parts.scheme.lower() == "http" and not self._allows_http():
            raise InvalidInputError(
                f"The endpoint of {self.url} is not encrypted: give https://, or the option 'allow_http': 'true'"
            )
        self._options[option] = endpoint
        return f"{parts.scheme}://{parts.netloc}".lower() + parts.path.rstrip("/")

    def _allows_http(self) -> bool:
        return self._options.get("allow_http", "").lower() in ("true", "1")

    def __repr__(self) -> str:
        return f"ObjectStore({self.name!r})"  # without credentials

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, without this process's connections."""
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    @property
    def prefix(self) -> str:
        """The path within the bucket, without slashes at its ends; empty: the whole bucket."""
        return self._url.prefix

    @property
    def _raw(self) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open_store())
        return self._opened[1]

    def _open_store(self) -> Any:
        client: dict[str, Any] = {**_TIMEOUTS, **{k: v for k, v in self._options.items() if k in _CLIENT}}
        client["allow_http"] = self._allows_http()
        config = {name: value for name, value in self._options.items() if name not in _CLIENT}
        opened: Any = from_url  # its types name each option of each store
        try:
            return opened(self.url, config=config, client_options=client, retry_config={"max_retries": 0})
        except (BaseError, ValueError, TypeError) as error:
            raise InvalidInputError(f"{self.url} can't be opened: {self._line(error)}") from None

    def rust_store_options(self) -> dict[str, str]:
        """Return the options as other libraries on Rust's `object_store` take them, with retries switched off."""
        return {**_TIMEOUTS, **self._options, "max_retries": "0"}

    # -- errors

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Translate obstore's errors to the package's own. Of their text only the first line stays, without secrets."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "No such object or bucket", f"{self.url}/{path}") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise NotAuthorizedError(f"No right to {self.url}/{path}: {self._line(error)}") from None
        except NotSupportedError as error:
            raise InvalidInputError(f"{self.url} lacks what exactly-once writing needs: {self._line(error)}") from None
        except (BaseError, OSError) as error:
            line = self._line(error)
            if _MISSING in line:  # a listing of a bucket that does not exist
                raise FileNotFoundError(errno.ENOENT, "No such bucket", self.url) from None
            if _DENIED.search(line):
                raise NotAuthorizedError(f"No right to list {self.url}/{path}: {line}") from None
            raise RetriableError(f"The store of {self.url}/{path} does not answer: {line}") from None

    def _line(self, error: BaseException) -> str:
        """Return an error's first line without secrets. The server's answer is cut off, except for its error code."""
        whole = str(error)
        line = (whole.splitlines() or [type(error).__name__])[0]
        code = _CODE.search(whole)  # by text: the code of the answer, for the message alone
        return self._without_secrets(_BODY.sub(lambda found: found[1] + (f" ({code[1]})" if code else ""), line))

    def error_text(self, error: BaseException) -> str:
        """Return the text of another library's error about this store, with its causes and without secrets."""
        said: list[str] = []
        for line in filter(None, (part.strip(" ↳\t") for part in _COLOURS.sub("", str(error)).splitlines())):
            if line.startswith(("<", "{")):  # the server's answer
                break
            said.append(_BODY.sub(lambda found: found[1], line))
            if _STATUS.fullmatch(line) or _BODY.search(line):
                break
        return self._without_secrets(": ".join(said) or type(error).__name__)

    def _without_secrets(self, text: str) -> str:
        text = _USER.sub("…@", _QUERY.sub("?…", text))
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        """Return all secret values among the options and the environment variables that obstore reads."""
        given = list(self._options.items())
        given += [(n, v) for n, v in os.environ.items() if n.startswith(_VARIABLES) and not n.endswith(_FILES)]
        return {value for name, value in given if len(value) > 3 and _SECRET.search(name)}

    # -- objects

    def create_object_if_absent(self, path: str, data: Content) -> Content | bytes:
        """Create an object by a conditional put unless one of this name exists; return the content that it then has.

        The caller compares the content with its own. After any error the object is read: an earlier request may have
        created it, and also this one if its answer was lost.
        """
        try:
            self._raw.put(path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            try:
                return self.read_object(path)
            except FileNotFoundError:
                raise RetriableError(f"{self.url}/{path} was removed meanwhile: {self._line(error)}") from None
        except (BaseError, OSError):
            with contextlib.suppress(FileNotFoundError, RetriableError, NotAuthorizedError):
                return self.read_object(path)
            with self._translated(path):
                raise
        return data

    def put_object(self, path: str, data: bytes | memoryview) -> None:
        """Write an object; replace one of the same name."""
        with self._translated(path):
            self._raw.put(path, data, use_multipart=False)

    def write_each(self, paths: Sequence[str], write: Callable[[str], None]) -> None:
        """Call `write` for each path; for more than four paths on 16 threads."""
        self._each(write, paths)

    def read_object(self, path: str) -> bytes:
        """Return an object's content; raise FileNotFoundError if there is none."""
        with self._translated(path):
            return bytes(self._raw.get(path).bytes())

    def stream_object(self, path: str, part_bytes: int) -> Generator[memoryview, None, None]:
        """Yield an object's content in parts of about `part_bytes`; raise FileNotFoundError if there is none."""
        with self._translated(path):
            for part in self._raw.get(path).stream(min_chunk_size=part_bytes):
                yield memoryview(part)

    def read_small_object(self, path: str, bytes_max: int) -> bytes | None:
        """Return an object's content; None, without a download, if it has more than `bytes_max` bytes."""
        with self._translated(path):
            found = self._raw.get(path)
            return None if found.meta["size"] > bytes_max else bytes(found.bytes())

    def read_objects(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the content of those of these objects that exist, by path."""
        return dict(self._each(self._content, paths))

    def object_sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes in bytes of those of these objects that exist, by path."""
        return dict(self._each(self._size, paths))

    def _content(self, path: str) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return path, self.read_object(path)
        return None

    def _size(self, path: str) -> Any:
        with contextlib.suppress(FileNotFoundError), self._translated(path):
            return path, int(self._raw.head(path)["size"])
        return None

    def _each(self, ask: Any, paths: Sequence[str]) -> list[Any]:
        if len(paths) <= _FEW:
            answers = [ask(path) for path in paths]
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                answers = list(pool.map(ask, paths))
        return [answer for answer in answers if answer is not None]

    def list_pages(self, folder: str, after: str = "") -> Iterator[list[str]]:
        """Yield the names in a folder that are greater than `after`, in pages of up to 1,000.

        They are sorted if the store sorts its listing. A server may ignore where a listing is to begin, and answer with
        smaller names too: they are left out here.
        """
        with self._translated(folder):
            offset = f"{folder}/{after}" if after else None
            for page in self._raw.list(f"{folder}/", offset=offset, chunk_size=1000):
                names = [str(entry["path"]).removeprefix(f"{folder}/") for entry in page]
                yield [name for name in names if name > after]

    def list_names(self, folder: str) -> list[str]:
        """Return the names of all objects in a folder; none if it does not exist."""
        return [name for page in self.list_pages(folder) for name in page]

    def list_directly_below(self, folder: str = "") -> list[str]:
        """Return the paths of objects and folders directly in a folder; empty: directly below the URL.

        An empty object with the folder's own name, as consoles create it, is left out.
        """
        with self._translated(folder):
            found = self._raw.list_with_delimiter(f"{folder}/") if folder else self._raw.list_with_delimiter()
            names = [*found["common_prefixes"], *(str(entry["path"]) for entry in found["objects"])]
            return [name for name in names if name.strip("/") not in ("", folder)]

    def copy_objects(self, paths: Mapping[str, str]) -> None:
        """Copy objects within the store, each to the path that `paths` maps it to; replace objects there.

        Raises:
            FileNotFoundError: an object to copy does not exist.
        """
        self._each(lambda path: self._copy(path, paths[path]), list(paths))

    def _copy(self, path: str, to: str) -> None:
        if self._url.scheme == "az":  # whose answer may come before the copy is whole
            self.put_object(to, self.read_object(path))
        else:
            with self._translated(path):
                self._raw.copy(path, to)

    def remove_objects(self, paths: Iterable[str]) -> None:
        """Remove those of these objects that exist."""
        gone = list(paths)
        if not gone:
            return
        with contextlib.suppress(FileNotFoundError), self._translated(gone[0]):
            self._raw.delete(gone)  # in one request, where the store can
            return
        for path in gone:
            with contextlib.suppress(FileNotFoundError), self._translated(path):
                self._raw.delete(path)

    # -- what a store must do

    def check_conditional_puts(self, path: str) -> None:
        """Check that only one of several conditional puts of one object succeeds, one after the other and at once.

        Args:
            path: a trial object that stays. Puts at once take a name of their own, which is removed: other members
                check too.

        Raises:
            InvalidInputError: the store has no conditional puts, or lets several succeed.
            RetriableError: none of the puts at once succeeded.
        """
        first, again = self.create_object_if_absent(path, b"first"), uuid.uuid4().hex.encode()
        if self.create_object_if_absent(path, again) == again:
            raise self._unconditional(f"a second put replaced what was {first.decode(errors='replace')!r}")
        raced = f"{path}-{uuid.uuid4().hex}"
        try:
            if not (winners := self.count_race_winners(raced)):
                self.put_object(raced, b"")  # raises what the store says
        finally:
            self.remove_objects([raced])
        if winners > 1:
            raise self._unconditional(f"of {_RACERS} puts at once {winners} were accepted")
        if not winners:
            raise RetriableError(f"The store of {self.url} does not answer: of {_RACERS} puts at once none succeeded")

    def count_race_winners(self, path: str) -> int:
        """Send 16 conditional puts of one object at once; return how many of them succeeded."""

        def wins_conditional_put(racer: int) -> bool:
            with contextlib.suppress(BaseError, OSError):
                self._raw.put(path, str(racer).encode(), mode="create", use_multipart=False)
                return True
            return False

        with ThreadPoolExecutor(_RACERS) as pool:
            return sum(pool.map(wins_conditional_put, range(_RACERS)))

    def _unconditional(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self.url} can't be written exactly once: its store has no conditional puts ({why}). Take a store that "
            "has them, as S3, Google Cloud Storage and Azure do, or a folder"
        )
