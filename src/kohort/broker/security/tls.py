"""TLS of a listener: contexts that follow their files, and a transport that encrypts between socket and connection.

A connection's bytes pass through OpenSSL's memory buffers, not through its socket calls. One receive and one send of
the system therefore serve many TLS records of 16 KiB, where OpenSSL would make two calls for each.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from kohort.broker.security.principals import PrincipalMapping, certificate_subject
from kohort.broker.security.settings import SecurityConfig
from kohort.broker.transport import MORE_FOLLOWS, LogSlice, ipv4_of_mapped
from kohort.errors import InvalidInputError
from kohort.io.key_stores import KeyStore, load_certificate_and_key, trusted_certificates
from kohort.io.server_certificates import pem_problem
from kohort.io.tls_records import EmptyTlsRecords, TlsRecordCounter
from kohort.settings.config import parse_value, settings
from kohort.wire.schema import Buffer

log = logging.getLogger("kohort.broker")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_ALERT_BEGINS = b"\x15\x03\x03"
"""The first bytes of an alert (Source: RFC 5246, 6.2.1).

Java's client takes four bytes for the length of an answer. A whole alert, as Apache Kafka sends it, makes it allocate
352 MB and often die; after three it finds the connection closed, and tries again.
"""
NONE_ALTERED: Mapping[str, str] = MappingProxyType({})
_Stamp: TypeAlias = tuple[int, int, int]


def tls_server_context(config: SecurityConfig) -> ssl.SSLContext:
    """Make the TLS context of a listener. May block, to read and decrypt files.

    Raises:
        InvalidInputError: there is no key, or a file can't be read or has something else, or a password is wrong.
    """
    if config.keystore_location is None and config.keystore_key is None:
        raise InvalidInputError(
            "TLS needs the broker's key and certificate: ssl.keystore.location (kohort broker --tls FILE)"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    versions = sorted(_VERSIONS[name] for name in config.enabled_protocols if name in _VERSIONS)
    if not versions:
        raise InvalidInputError("ssl.enabled.protocols names no version that is spoken here: TLSv1.2 or TLSv1.3")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    store = KeyStore(
        config.keystore_location,
        None,
        config.keystore_key,
        config.keystore_chain,
        config.keystore_password,
        config.key_password,
    )
    try:
        load_certificate_and_key(context, store)
    except (OSError, ssl.SSLError) as error:
        place = config.keystore_location or "ssl.keystore.key"
        raise InvalidInputError(f"can't load the key and certificate of {place}: {pem_problem(error)}") from None
    _set_ciphers(context, config)
    _set_client_auth(context, config)
    return context


def _set_ciphers(context: ssl.SSLContext, config: SecurityConfig) -> None:
    suites = [suite for suite in config.cipher_suites if "_WITH_" in suite]
    if not suites:
        return
    names = [
        suite.removeprefix("TLS_").replace("_WITH_", "-").replace("AES_", "AES").replace("_", "-") for suite in suites
    ]
    names = [name.removesuffix("-SHA256") if "CHACHA20" in name else name for name in names]
    try:
        context.set_ciphers(":".join(name.removeprefix("RSA-") for name in names))
    except ssl.SSLError:
        raise InvalidInputError(f"ssl.cipher.suites: OpenSSL has none of {', '.join(suites)}") from None


def _set_client_auth(context: ssl.SSLContext, config: SecurityConfig) -> None:
    context.verify_mode = _CLIENT_AUTH[config.client_auth]
    if context.verify_mode is ssl.CERT_NONE:
        return
    location, certificates = config.truststore_location, config.truststore_certificates
    if (location is None) == (certificates is None):
        raise InvalidInputError(
            f"ssl.client.auth={config.client_auth} needs the authorities of clients' certificates: either "
            "ssl.truststore.location or ssl.truststore.certificates"
        )
    try:
        if certificates is not None:
            context.load_verify_locations(cadata=certificates)
            return
        assert location is not None
        stored = trusted_certificates(location, config.truststore_password)
        if stored is None:
            context.load_verify_locations(cafile=location)
        else:
            context.load_verify_locations(cadata=stored)
    except (OSError, ssl.SSLError) as error:
        place = location or "ssl.truststore.certificates"
        raise InvalidInputError(f"can't load the authorities of {place}: {error}") from None


class LoadedStores(NamedTuple):
    """Key and trust store of a listener, loaded and not used yet."""

    config: SecurityConfig
    context: ssl.SSLContext
    stamps: list[_Stamp | None]


class ServerTls:
    """The TLS of one listener: its context, and the users' names by their certificates.

    Attributes:
        context: used for new connections; replaced by `reload` and `use_stores`.
    """

    def __init__(
        self, name: str, config: SecurityConfig, mapping: PrincipalMapping, altered: Mapping[str, str] = NONE_ALTERED
    ) -> None:
        """Load the files. `altered` are the listener's settings that requests have changed, by name.

        Raises:
            InvalidInputError: see `tls_server_context`.
        """
        self._name = name
        self._given = config
        self._config = _with(config, altered)
        self._mapping = mapping
        self._stamps = _file_stamps(self._config)
        try:
            self.context = tls_server_context(self._config)
        except InvalidInputError as error:
            raise InvalidInputError(f"listener {name}: {error.message}") from None

    def load_stores(self, altered: Mapping[str, str]) -> LoadedStores:
        """Load the stores of the settings from the broker's start with these changes, for `use_stores`. May block.

        Raises:
            InvalidInputError: a value is invalid, or a location is no regular file, or see `tls_server_context`.
        """
        config = _with(self._given, altered)
        for key, location in (("keystore", config.keystore_location), ("truststore", config.truststore_location)):
            if location is not None and Path(location).exists() and not Path(location).is_file():
                raise InvalidInputError(f"ssl.{key}.location: {location} is no file")  # a pipe would block for ever
        stamps = _file_stamps(config)
        if config.client_auth == "none" and (config.truststore_location or config.truststore_certificates):
            tls_server_context(replace(config, client_auth="requested"))  # checked, although nothing uses it
        return LoadedStores(config, tls_server_context(config), stamps)

    def use_stores(self, stores: LoadedStores) -> None:
        """Use a loaded key and trust store for new connections."""
        self._config, self.context, self._stamps = stores
        log.info(
            "[listener %s] TLS certificates replaced by a change of its settings: new connections get them", self._name
        )

    @property
    def has_changed_files(self) -> bool:
        """Whether a file differs from the one that was loaded last."""
        return _file_stamps(self._config) != self._stamps

    def reload(self) -> None:
        """Load the files again for new connections. May block. If they are unusable, the loaded ones stay in use."""
        config = self._config
        self._stamps = _file_stamps(config)
        try:
            context = tls_server_context(config)
        except InvalidInputError as error:
            log.error(
                "[listener %s] changed TLS certificate files ignored: %s; the previous certificates stay in use",
                self._name,
                error.message,
            )
        else:
            if self._config is config:  # no request has replaced them meanwhile
                self.context = context
                log.info("[listener %s] changed TLS certificate files loaded: new connections get them", self._name)

    def user_of_certificate(self, certificate: bytes | None) -> str | None:
        """Return the user's name for a client's DER certificate; None for a client that sent no certificate.

        Raises:
            ValueError: no rule of `ssl.principal.mapping.rules` matches, or the certificate has no readable subject.
        """
        if certificate is None:
            return None
        subject = certificate_subject(certificate)
        user = self._mapping.user_name_of(subject)
        if user is None:
            raise ValueError(f"no rule of ssl.principal.mapping.rules matches {subject}")
        return user


def _with(config: SecurityConfig, altered: Mapping[str, str]) -> SecurityConfig:
    known = settings(SecurityConfig)
    return replace(config, **{known[key].field: parse_value(known[key], text, key) for key, text in altered.items()})


def _file_stamps(config: SecurityConfig) -> list[_Stamp | None]:
    """Return modification time, size and inode of the key and trust stores, which change with their content."""
    stamps: list[_Stamp | None] = []
    for location in (config.keystore_location, config.truststore_location):
        stamp: _Stamp | None = None
        if location is not None:
            with contextlib.suppress(OSError):
                found = Path(location).stat()
                stamp = found.st_mtime_ns, found.st_size, found.st_ino
        stamps.append(stamp)
    return stamps


# -- The transport of one connection

RECORD_BYTES = 1 << 14
"""The largest plain text of one TLS record."""
_ROOM_BYTES = 2 * (RECORD_BYTES + 512)
"""Room that a receive leaves in the caller's buffer: the start of a record may be left from the receive before."""
CHUNK_BYTES = 1 << 17
"""Plain text encrypted at once, which bounds the encrypted bytes that a connection holds."""


class TlsTransport:
    """A `Transport` over TLS on a non-blocking TCP socket.

    A chunk counts as sent when all of its encrypted bytes have left. Until then the caller offers it again, as its
    first bytes, and it is not encrypted twice.
    """

    __slots__ = (
        "_chunk_bytes", "_incoming", "_outgoing", "_records", "_silent", "_sock", "_tls", "_unsent", "fd", "local",
        "peer",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: tuple[str, int], context: ssl.SSLContext) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        host, port = sock.getsockname()[:2]
        self.local = (ipv4_of_mapped(host), port)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._chunk_bytes = 0
        self._records = TlsRecordCounter()
        self._silent = EmptyTlsRecords()

    # -- handshake

    def receive_handshake(self) -> bytes:
        """Receive bytes of the handshake; return them. Empty: the client has closed the connection.

        Raises:
            OSError: nothing is there, or the connection has failed.
        """
        data = self._sock.recv(RECORD_BYTES)
        pieces = [*self._records.split_by_records(data)]
        if len(pieces) > 1:  # those behind the handshake would be decrypted on the loop
            raise ConnectionAbortedError("too many TLS records for a handshake")
        self._incoming.write(data)
        return data

    def continue_handshake(self) -> bool:
        """Continue the handshake with the received bytes; return whether it is complete. Uses no socket.

        Raises:
            ssl.SSLError: it has failed.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def refuse_plaintext_client(self) -> None:
        """Send the start of a TLS alert, by which kohort's client learns that this listener requires TLS.

        Raises:
            OSError: the connection has failed.
        """
        self._sock.send(_ALERT_BEGINS)

    def send_encrypted(self) -> None:
        """Send bytes that are already encrypted and were not sent yet.

        Raises:
            BlockingIOError: some are left, since the socket is full.
            OSError: the connection has failed.
        """
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate as DER; None: it showed none."""
        return self._tls.getpeercert(binary_form=True)

    # -- data

    def receive_into(self, buffer: memoryview, /) -> int:
        """Receive and decrypt available bytes; return how many. 0: the client has closed the connection.

        No complete record is left undecrypted, since the loop would not learn of it.

        Raises:
            BlockingIOError: no data is there.
            OSError: the connection has failed, or the client sends too many records without data.
        """
        count = self._decrypt(buffer) if self._incoming.pending else 0  # what came behind the handshake
        if not count:
            data = self._sock.recv(len(buffer) - _ROOM_BYTES)
            if not data:
                return 0
            for piece, records in self._records.split_by_records(data):
                self._incoming.write(piece)
                self._silent.count_records(records)
                found = self._decrypt(buffer[count:])
                if found < 0:
                    return count
                count += found
                try:
                    self._silent.check_bound()
                except ConnectionAbortedError:
                    log.warning("closing the connection from %s:%d: too many TLS records without data", *self.peer)
                    raise
        if not count:
            raise BlockingIOError
        return max(count, 0)

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypt the received TLS records; return how many bytes, or -1 if the client has ended TLS."""
        count = 0
        try:
            while count < len(buffer):
                size = cast(
                    int, self._tls.read(len(buffer) - count, buffer[count:])
                )  # into the buffer, by its stubs bytes
                if not size:
                    return count or -1
                count += size
                self._silent.credit_data(size)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return count or -1
        return count

    def send(self, buffers: Sequence[Buffer], /, *, more: bool) -> int:
        """Encrypt and send these bytes; return how many have left. `more`: others follow at once."""
        views = [memoryview(buffer) for buffer in buffers]

        def chunk_at(start: int) -> Iterator[Buffer]:
            left = CHUNK_BYTES
            for view in views:
                if start >= len(view):
                    start -= len(view)
                    continue
                piece = view[start : start + left]
                start = 0
                left -= len(piece)
                yield piece
                if not left:
                    return

        return self._send_all(sum(map(len, views)), chunk_at, MORE_FOLLOWS if more else 0)

    def send_log_slice(self, part: LogSlice, count: int, /) -> int:
        """Read, encrypt and send up to `count` bytes of a log file; return how many have left."""

        def chunk_at(start: int) -> Iterator[Buffer]:
            yield part.read_at(start, min(CHUNK_BYTES, count - start))

        return self._send_all(count, chunk_at, 0)

    def _send_all(self, offered: int, chunk_at: Callable[[int], Iterator[Buffer]], flags: int) -> int:
        """Send chunks until everything offered has left, or the socket is full.

        Args:
            offered: how many bytes there are.
            chunk_at: returns the pieces of the chunk that begins at a position.
            flags: of the socket's `send`.

        Raises:
            BlockingIOError: the socket is full, and nothing has left.
        """
        sent = 0
        while sent < offered:
            if not self._chunk_bytes:
                size = 0
                for piece in chunk_at(sent):
                    if len(piece):
                        size += self._tls.write(piece)
                if not size:
                    return sent
                self._chunk_bytes = size
            try:
                self._flush_chunk(flags)
            except (BlockingIOError, InterruptedError):
                if not sent:
                    raise
                return sent
            sent += self._chunk_bytes
            self._chunk_bytes = 0
        return sent

    def _flush_chunk(self, flags: int) -> None:
        if self._outgoing.pending:
            encrypted = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + encrypted if self._unsent else encrypted)
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent, flags) :]

    def close(self) -> None:
        """Tell the client that TLS ends, if there is room for it, and close the socket."""
        with contextlib.suppress(OSError, ValueError):
            if not self._unsent and self._tls.version() is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                self.send_encrypted()
        self._sock.close()
