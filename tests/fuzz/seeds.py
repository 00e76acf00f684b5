"""The first inputs of each corpus: what honest clients send. `python -m tests.fuzz --write-corpus` adds the missing.

Tokens need the issuer's private keys, which are not kept. So the keys and the tokens of a corpus are made together.
"""

from __future__ import annotations

import base64
import json
import random
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from kohort.io.channel import token_proof
from kohort.region.message_codec import encode_message
from kohort.region.messages import Answer, Ask, CheckpointAttempt, Identity, Order, Report
from kohort.region.record_codec import encode_fact_key, encode_fact_value
from kohort.region.records import (
    Contribution,
    EpochBegun,
    GroupClaim,
    InitialOffset,
    InitialTopics,
    Manifest,
    OffsetSpan,
    Position,
    PublishedCheckpoint,
    RegionCreated,
    RegionStopped,
    StoppedMembers,
    TermBegun,
)
from kohort.wire import push
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.framing import APIS
from tests.broker.fuzz.making import request
from tests.fuzz.corpus import FOLDER, KEPT_BYTES_MAX, KEYS
from tests.fuzz.parsers import (
    AUDIENCE,
    ISSUER,
    NOW,
    PARSERS,
    REGION_NONCES,
    REGION_TOKEN,
    region_stream,
)
from tests.support.hostile_batches import HOSTILE
from tests.support.secured_kafka import make_certificates


def _jose() -> Iterator[tuple[str, str, bytes]]:
    keys: dict[str, Any] = {
        "ES256": ECKey.generate_key("P-256", {"kid": "es256"}),
        "RS256": RSAKey.generate_key(2048, {"kid": "rs256"}),
        "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed25519"}),
    }
    KEYS.write_text(json.dumps(KeySet([*keys.values()]).as_dict(private=False), indent=1) + "\n")
    claims = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 60, "iss": ISSUER, "aud": [AUDIENCE]}
    for name, key in keys.items():
        token = jwt.encode({"alg": name, "kid": key.kid}, claims, key, algorithms=[name]).encode()
        yield "jose", f"valid-{name.lower()}", token
        yield "sasl-oauthbearer", f"valid-{name.lower()}", b"n,a=alice,\x01auth=Bearer " + token + b"\x01\x01"
    key = keys["ES256"]
    for title, change in (
        ("expired", {"exp": NOW - 900}), ("elsewhere", {"iss": "https://elsewhere"}), ("for-others", {"aud": "web"}),
        ("without-subject", {"sub": None}), ("early", {"nbf": NOW + 900}),
    ):  # fmt: skip
        token = jwt.encode({"alg": "ES256", "kid": "es256"}, claims | change, key).encode()
        yield "jose", title, token
    yield "sasl-oauthbearer", "early", b"n,,\x01host=h\x01port=9\x01auth=bearer " + token + b"\x01\x01"


def _logins() -> Iterator[tuple[str, str, bytes]]:
    for title, data in (
        ("valid", b"\0alice\0secret"), ("valid-twice", b"alice\0alice\0secret"), ("guess", b"\0alice\0guess"),
        ("other", b"root\0alice\0secret"), ("nobody", b"\0nobody\0secret"),
    ):  # fmt: skip
        yield "sasl-plain", title, data
    last = b"c=biws,r=@nonce@,p=@proof@"
    for title, data in (
        ("valid-256", b"2n,,n=alice,r=nonce\n" + last), ("valid-512", b"5n,,n=alice,r=nonce\n" + last),
        ("valid-y", b"2y,,n=alice,r=nonce\nc=eSws,r=@nonce@,p=@proof@"),
        ("valid-named", b"2n,a=alice,n=alice,r=nonce\nc=bixhPWFsaWNlLA==,r=@nonce@,p=@proof@"),
        ("nobody", b"2n,,n=nobody,r=nonce\n" + last), ("token", b"2n,,n=alice,r=nonce,tokenauth=true\n" + last),
        ("guess", b"5n,,n=alice,r=nonce\nc=biws,r=@nonce@,p=" + b"A" * 86 + b"=="),
    ):  # fmt: skip
        yield "sasl-scram", title, data


def _records() -> Iterator[tuple[str, str, bytes]]:
    rows = [BatchRecord(0, 1_700_000_000_000 + n, b"k", b"value %d" % n, [("h", b"1")]) for n in range(3)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        yield "records", f"valid-{codec}", build_batch(rows, compression=codec)
    yield "records", "valid-nulls", build_batch([BatchRecord(0, -1, None, None)])
    facts: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    yield "records", "valid-transactional", build_batch(rows, **facts)
    yield "records", "valid-two", build_batch(rows) + build_batch(rows[:1], compression="zstd")
    for title, data in HOSTILE.items():
        yield "records", title.replace(" ", "-").replace(",", ""), data
    for codec in ("gzip", "zstd", "lz4"):
        yield "records", f"zeros-{codec}", build_batch([BatchRecord(0, 1, None, bytes(500_000))], compression=codec)


def _regions() -> Iterator[tuple[str, str, bytes]]:
    yield (
        "region-frames",
        "valid",
        REGION_NONCES[32:] + token_proof(REGION_TOKEN, "caller", REGION_NONCES) + region_stream(),
    )
    yield "region-frames", "stranger", bytes(64) + region_stream()
    for name, kinds in (("region-said", (Report, Ask)), ("region-heard", (Order, Answer))):
        for kind in (found for union in kinds for found in get_args(union)):
            yield name, kind.__name__.lower(), encode_message(kind(*(_value(str(text)) for text in _fields(kind))))
    region_id = UUID(int=66)
    position = Position("g", "t", UUID(int=1), 0, 10, 2)
    for fact in (
        TermBegun("r", 3, "127.0.0.1", 9, b"", 0), EpochBegun("r", 5, 3, 6, 0, "m", 0),
        RegionCreated("r", region_id, 0), RegionStopped("r", "who", "m", "why", 0), GroupClaim("g", "r", "app", 0),
        StoppedMembers("r", {"m": region_id}, 0), InitialTopics("r", "g", ("t",)), PublishedCheckpoint("r", "s", 4, 0),
        Manifest("r", region_id, 4, 3, 0, 0, ("m",), ("m",), (position,), places=("s",)),
        InitialOffset("r", "g", "t", UUID(int=1), 0, 10, 2),
    ):  # fmt: skip
        yield "region-fact", type(fact).__name__.lower(), encode_fact_key(fact) + b"\n" + encode_fact_value(fact)


def _nested() -> Iterator[tuple[str, str, bytes]]:
    """Nesting that ends Python's decoders with another error than bad syntax does."""
    brackets, arrays = b"[" * 2_000, b"\x91" * 2_000
    header = base64.urlsafe_b64encode(brackets).rstrip(b"=")
    yield "jose", "nested", header + b".e30.e30"
    yield "sasl-oauthbearer", "nested", b"n,,\x01auth=Bearer " + header + b".e30.e30\x01\x01"
    yield "region-fact", "nested-key", brackets + b"\n\x01\x80"
    yield "region-fact", "nested-value", b'["term","r"]\n\x01' + arrays
    yield "region-said", "nested", b"\x92\xa8AskReset\x81\xa5later" + arrays
    yield "region-heard", "nested", b"\x92\xa7Refused\x81\xa5later" + arrays
    yield "push", "nested", brackets
    yield "patterns", "nested-groups", b"(" * 900 + b"a" + b")" * 900 + b"\na"


def _fields(kind: Any) -> list[str]:
    return [found.type for found in fields(kind) if found.default is MISSING and found.default_factory is MISSING]


def _value(kind: str) -> Any:
    """A value for a field that has no default."""
    span = OffsetSpan("g", "t", UUID(int=1), 0, 3, 10)
    plain: dict[str, Any] = {
        "int": 3, "str": "a", "bytes": b"b", "bool": True, "float": 1.5, "UUID": UUID(int=5),
        "CheckpointAttempt": CheckpointAttempt(4, 1),
        "Identity": Identity("m", 2, None), "dict[str, int]": {"why": 2},
        "Contribution": Contribution("r", 4, 3, 5, "m", ("m",), "g", "id", 2, None, (span,), (), b"state"),
    }  # fmt: skip
    return plain.get(kind, None if "None" in kind else ())


def _pushes() -> Iterator[tuple[str, str, bytes]]:
    register = push.RegisterConsumerRequest("g", "c", '{"t":1}', True, "smallest", 6_000)
    start = push.encode_start([push.PositionedPartition("t", 1, 0, 7)])
    for title, data in (
        ("metadata", push.ClusterMetadataRequest("g").encode_frame()), ("register", register.encode_frame()),
        ("ping", push.encode_ping(2)), ("stop", push.encode_stop()), ("start", start),
        ("answer", push.ErrorResponse(3).encode_frame()),
        ("answer-ping", push.encode_ping_response([push.PositionedPartition("t", 1, 0, 7)])),
        ("brokers", push.ClusterMetadataResponse(0, 1, (push.PushBroker(1, "h", 9),)).encode_frame()),
    ):  # fmt: skip
        yield "push", title, data[4:] if int.from_bytes(data[:4], "big") == len(data) - 4 else data
    for title, data in (("topics", b'{"t":1,"u":2}'), ("regex", b"*2*t.*"), ("excluding", b"!1!u")):
        yield "push", title, data


def _names() -> Iterator[tuple[str, str, bytes]]:
    yield "acls", "simple", b"CBDB/orders/User:alice/*\nCADA/ord/User:*/10.0.0.1\nCBDA/orders/User:bob/::1\norders-2"
    yield "acls", "wildcards", b"CBCB/*/User:*/*\nCACA/*/User:alice/*\nCBDA/*/User:bob/0:0:0:0:0:0:0:1\n*a"
    yield "acls", "empty", b"CADB//User:alice/\nCBDB//User:alice/*\n\n"
    for title, data in (
        ("names", b"a|b.*|^c$\na\nb1\nc\nd"), ("group", b"(a|b).*\na1\nb\nc"), ("nested", b"a*a*a*a*b\n" + b"a" * 200),
        ("deep", b"(a+)+$\n" + b"a" * 200),
        ("classes", b"[[:alpha:]]+\\d{2,9}\nab12"), ("large", b"(a{1,30}){1,30}\naa"),
        ("lines", b"a.*\na\x00b\na\r"), ("unicode", "ü.*|日本\nüb\n日本".encode()),
    ):  # fmt: skip
        yield "patterns", title, data


def _certificates() -> Iterator[tuple[str, str, bytes]]:
    with tempfile.TemporaryDirectory(prefix="kohort-fuzz-") as name:
        folder = Path(name)
        make_certificates(folder)
        yield "certificates", "client", ssl.PEM_cert_to_DER_cert((folder / "client.crt").read_text())
        subject = "/C=CH/O=Ex, Ample/OU=a+b/CN= \\#x /emailAddress=a@b/DC=local/UID=u"
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-x509", "-keyout", "k.pem")
        command = ["openssl", *new, "-out", "c.pem", "-days", "2", "-subj", subject]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        yield "certificates", "long-subject", ssl.PEM_cert_to_DER_cert((folder / "c.pem").read_text())


def _hellos() -> Iterator[tuple[str, str, bytes]]:
    for title, version in (("tls-1.3", ssl.TLSVersion.TLSv1_3), ("tls-1.2", ssl.TLSVersion.TLSv1_2)):
        context = ssl.create_default_context()
        context.maximum_version = version
        outgoing = ssl.MemoryBIO()
        try:
            context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        except ssl.SSLWantReadError:
            yield "tls", title, outgoing.read()
    yield "tls", "alert", b"\x15\x03\x01\0\2\2\x28"
    yield "tls", "http", b"GET / HTTP/1.1\r\n\r\n"
    yield "tls", "empty-records", b"\x16\x03\x01\0\0" * 40


def _requests() -> Iterator[tuple[str, str, bytes]]:
    for api in APIS.values():
        pick = random.Random(api.name)
        drawn = (request(pick, 1, api)[2][4:] for _ in range(40))
        shortest = sorted((frame for frame in drawn if len(frame) <= 300), key=len)
        if shortest:
            yield "requests", api.name, shortest[len(shortest) // 2]


def write_seeds() -> None:
    """Write the corpora that are missing."""
    makers: tuple[Callable[[], Iterator[tuple[str, str, bytes]]], ...] = (
        _jose, _logins, _records, _regions, _nested, _pushes, _names, _certificates, _hellos, _requests,
    )  # fmt: skip
    names = {target.name for target in PARSERS} | {"tls"}
    missing = {name for name in names if not (FOLDER / f"{name}.txt").exists()}
    if "jose" in missing or "sasl-oauthbearer" in missing:
        missing |= {"jose", "sasl-oauthbearer"}
    for name in missing:
        (FOLDER / f"{name}.txt").unlink(missing_ok=True)
    for make in makers if "jose" in missing else makers[1:]:
        for name, title, data in make():
            if name in missing and len(data) <= KEPT_BYTES_MAX:
                with (FOLDER / f"{name}.txt").open("a", encoding="ascii") as file:
                    file.write(f"{title}: {data!r}\n")
