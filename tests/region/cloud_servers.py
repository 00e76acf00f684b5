"""Servers of Azure's and Google's object stores in processes of their own: Azurite, and fake-gcs-server.

Both are emulators: their registries have them, and no provider's own server. Azurite is Microsoft's. fake-gcs-server
knows conditional puts in Google's JSON protocol only, and obstore speaks the XML one: `GoogleFront` translates.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import unescape

import pyarrow.fs as pafs
import pytest

from kohort.zookeeper import free_ports
from tests.peers.peers import CACHE, PeerUnavailable, build, digest
from tests.region.s3_server import BUCKET, listens
from tests.support.waiting import until

_PINS = Path(__file__).parent / "clouds"
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that each Azurite has, as its documentation publishes it."""
_ENTRY = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


@dataclass(frozen=True)
class Cloud:
    """A running store with the bucket, or container, `lake`.

    Attributes:
        scheme: of its URLs.
        address: the server's own; a proxy may stand before it.
        secret: what nobody may see.
        options_at: returns the options of a sink that reaches it by an address.
        files: the objects, as Arrow reaches them.
    """

    scheme: str
    address: str
    secret: str
    options_at: Callable[[str], dict[str, str]]
    files: Any

    @property
    def options(self) -> dict[str, str]:
        return self.options_at(self.address)

    def objects(self, url: str) -> list[str]:
        """Return the paths of all objects below a URL."""
        base = url.partition("://")[2]
        found = self.files.get_file_info(pafs.FileSelector(base, recursive=True))
        return sorted(info.path.removeprefix(f"{base}/") for info in found if info.is_file)


@contextlib.contextmanager
def _process(command: list[str], port: int, folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        until(lambda: listens(port), f"{command[0]} listens, see {folder}/log")
        yield
    finally:
        server.kill()
        server.wait()


def _azurite() -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PeerUnavailable("node or npm is not installed")
    sources = [_PINS / "package.json", _PINS / "package-lock.json"]
    folder = CACHE / f"azurite-{digest(sources)}"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copy(source, folder)
        command = [npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
        build(command, folder, "npm")
    return [node, str(program)]


def _fake_gcs_server() -> str:
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailable("go is not installed")
    program = CACHE / f"fake-gcs-server-{digest([_PINS / 'go.mod', _PINS / 'go.sum'])}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        build([go, "build", "-mod=readonly", "-o", str(program), "github.com/fsouza/fake-gcs-server"], _PINS, "go")
    return str(program)


@contextlib.contextmanager
def azure(folder: Path) -> Iterator[Cloud]:
    """Run Azurite."""
    (port,) = free_ports(1)
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "blobs"),
               "--disableTelemetry", "--silent", "--skipApiVersionCheck"]  # fmt: skip

    def options_at(address: str) -> dict[str, str]:
        return {"account_name": _ACCOUNT, "account_key": _ACCOUNT_KEY, "endpoint": f"{address}/{_ACCOUNT}",
                "allow_http": "true"}  # fmt: skip

    with _process([*_azurite(), *options], port, folder):
        where = f"127.0.0.1:{port}"
        made: Any = pafs.AzureFileSystem  # its types name other options
        files = made(_ACCOUNT, account_key=_ACCOUNT_KEY, blob_storage_authority=where, dfs_storage_authority=where,
                     blob_storage_scheme="http", dfs_storage_scheme="http")  # fmt: skip
        files.create_dir(BUCKET)
        yield Cloud("az", f"http://{where}", _ACCOUNT_KEY, options_at, files)


@contextlib.contextmanager
def google(folder: Path) -> Iterator[Cloud]:
    """Run fake-gcs-server, and the front that speaks obstore's protocol."""
    (port,) = free_ports(1)
    where = f"127.0.0.1:{port}"
    command = [_fake_gcs_server(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
               "-public-host", where, "-external-url", f"http://{where}", "-log-level", "error"]  # fmt: skip

    def options_at(address: str) -> dict[str, str]:
        account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": "",
                   "private_key_id": ""}  # fmt: skip
        return {"service_account_key": json.dumps(account), "base_url": address, "allow_http": "true"}

    with _process(command, port, folder), GoogleFront(port) as front:
        made: Any = pafs.GcsFileSystem
        files = made(anonymous=True, scheme="http", endpoint_override=where, project_id="kohort")
        files.create_dir(BUCKET)
        yield Cloud("gs", front.address, "gcs_base_url", options_at, files)


class GoogleFront:
    """A translator of puts, copies and removals from Google's XML protocol to the JSON one; other requests pass.

    `x-goog-if-generation-match: 0` becomes `ifGenerationMatch=0`. The server decides. Of a listing the names before
    `start-after` are left out, which the server does not know.
    """

    def __init__(self, port: int) -> None:
        class Handler(_GoogleHandler):
            upstream = port

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> GoogleFront:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


class _GoogleHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = 0

    def log_message(self, *_arguments: object) -> None: ...

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        server = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            server.request(method, path, body, headers)
            answer = server.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            server.close()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        if self.command == "PUT" and name:
            status, headers, data = self._put(bucket, name, body)
        elif self.command == "DELETE" and name:
            path = f"/storage/v1/b/{bucket}/o/{name.replace('/', '%2F')}"
            status, headers, data = self._ask("DELETE", path, b"", {})
        else:
            given = {key: value for key, value in self.headers.items() if key.lower() not in _HOP_BY_HOP}
            given["Host"] = f"127.0.0.1:{self.upstream}"
            status, headers, data = self._ask(self.command, self.path, body, given)
            if after := parse_qs(urlsplit(self.path).query).get("start-after"):
                data = _ENTRY.sub(lambda found: found[0] if unescape(found[1].decode()) > after[0] else b"", data)
        self.send_response(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for key, value in headers.items():
            if key.lower() not in _HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _put(self, bucket: str, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        generation = self.headers.get("x-goog-if-generation-match")
        condition = f"ifGenerationMatch={generation}" if generation is not None else ""
        if source := self.headers.get("x-goog-copy-source"):
            old_bucket, _, old = source.lstrip("/").partition("/")
            path = (
                f"/storage/v1/b/{old_bucket}/o/{old.replace('/', '%2F')}/rewriteTo/b/{bucket}/o/"
                f"{name.replace('/', '%2F')}?{condition}"
            )
            status, _, data = self._ask("POST", path, b"", {})
            return status, {}, data if status >= 300 else b""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name.replace('/', '%2F')}&{condition}"
        kind = self.headers.get("Content-Type") or "application/octet-stream"
        status, _, data = self._ask("POST", path, body, {"Content-Type": kind})
        if status >= 300:
            return status, {}, data
        made = json.loads(data)
        headers = {"ETag": f'"{quote(str(made["etag"]))}"', "x-goog-generation": str(made["generation"])}
        return status, headers, b""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - as http.server calls them


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Cloud]:
    """Run the server of `az` or `gs`; skip the test where it can't be had."""
    with contextlib.ExitStack() as stack:
        try:
            cloud = stack.enter_context({"az": azure, "gs": google}[name](folder))
        except PeerUnavailable as error:
            pytest.skip(f"no server for {name}: {error}")
        yield cloud
