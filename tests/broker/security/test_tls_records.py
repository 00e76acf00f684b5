"""TLS records without data: a client may send some, such as key updates, and never enough to hold up the broker."""

from __future__ import annotations

from kohort.io.tls_records import RECORD_HEADER_BYTES, SILENT_RECORDS_MAX, TlsRecordCounter
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest
from tests.support.secured_broker import SecuredBroker
from tests.support.tls_record_client import TlsRecordClient


def client_of(secured: SecuredBroker, listener: str) -> TlsRecordClient:
    host, _, port = secured.address(listener).rpartition(":")
    return TlsRecordClient((host, int(port)))


def request(client: TlsRecordClient) -> bytes:
    """Return the encrypted bytes of a request."""
    message = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    return client.encrypted(framing.encode_request(message, 3, 1, "raw"))


def test_a_client_that_changes_its_keys_is_served(secured: SecuredBroker) -> None:
    client = client_of(secured, "TLS")
    with client:
        for _ in range(5):
            client.sock.sendall(client.key_updates(10) + request(client))
            assert client.read()


def test_a_client_that_does_nothing_but_change_its_keys_is_closed(secured: SecuredBroker) -> None:
    for listener in ("TLS", "BOTH"):
        client = client_of(secured, listener)
        with client:
            client.sock.sendall(client.key_updates(2 * SILENT_RECORDS_MAX))
            assert not client.read()


def test_requests_between_key_updates_do_not_hide_them(secured: SecuredBroker) -> None:
    client = client_of(secured, "TLS")
    with client:
        client.sock.sendall(b"".join(client.key_updates(2) + request(client) for _ in range(SILENT_RECORDS_MAX)))
        answers = 0
        while client.read():
            answers += 1
        assert answers < SILENT_RECORDS_MAX


def test_records_are_counted_wherever_the_bytes_are_split() -> None:
    sizes = [0, 1, 300, 16_401, 22] * 7
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size for size in sizes)
    for step in (1, 2, 3, RECORD_HEADER_BYTES, 7, 1_000, len(stream)):
        counter, found, pieces = TlsRecordCounter(4), 0, b""
        for start in range(0, len(stream), step):
            for piece, count in counter.split_by_records(stream[start : start + step]):
                assert count <= 4
                found += count
                pieces += piece
        assert (found, pieces) == (len(sizes), stream)
