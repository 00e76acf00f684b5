"""Decoders and logins in this process: each check takes any bytes, and says what became of them.

A check raises `Finding` when a promise is broken. Examples are an undocumented error, a login without the secret, and a
compiled form that disagrees with its plain twin. Another is a batch that is accepted and can't be read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import re
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import crc32c
from joserfc.jwk import KeySet

from kohort import name_patterns
from kohort.broker.acls import IMPLIES, AclIndex, AclRule, normalized_address
from kohort.broker.config.users import Users
from kohort.broker.security.mechanisms import BearerExchange, LoginRefused, PlainExchange, ScramExchange
from kohort.broker.security.principals import certificate_subject
from kohort.broker.security.settings import security_config
from kohort.broker.security.tokens import TokenVerifier
from kohort.columns import COMPILED, Decoded, DecodeOptions, RecordSet, reference
from kohort.errors import CorruptDataError, InvalidInputError, KafkaError
from kohort.ids import AclOperation, AclPattern, AclPermission
from kohort.io.channel import LinkFrames, ListenerHandshake, token_proof
from kohort.log.config import LogConfig
from kohort.log.cooperative import LoopBudget, TooMuchForLoopError
from kohort.log.validator import BatchValidator, assign_offsets
from kohort.region.message_codec import UnknownMessageError, decode_order, decode_report, encode_message
from kohort.region.record_codec import (
    decode_fact,
    encode_fact_key,
    encode_fact_value,
    region_in_claim_key,
    region_in_record_key,
)
from kohort.wire import push, record_walk
from kohort.wire.batch import HEADER_SIZE, parse_header
from kohort.wire.framing import APIS, decode_request_header
from kohort.wire.schema import WireError
from tests.broker.fuzz.cases import Finding
from tests.fuzz.corpus import KEYS, mutated, read_corpus

Check = Callable[[bytes], str]
Mutate = Callable[[random.Random, bytes, bytes], bytes]


@dataclass(frozen=True)
class ParserTarget:
    """One kind of input.

    Attributes:
        name: of the target, and of its corpus.
        check: takes an input and returns in a few words what became of it.
        words: what the format knows.
        mutate: changes an input, where bytes alone would seldom get past the first check.
    """

    name: str
    check: Check
    words: tuple[bytes, ...] = ()
    mutate: Mutate | None = None

    def changed(self, pick: random.Random, corpus: list[bytes]) -> bytes:
        """Draw an input from the corpus and change it."""
        data, other = pick.choice(corpus), pick.choice(corpus)
        if self.mutate is not None and pick.random() < 0.7:
            return self.mutate(pick, data, other)
        return mutated(pick, data, other, self.words)


# -- JOSE tokens

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer", "kafka"


@cache
def _verifier() -> TokenVerifier:
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": KEYS.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    return TokenVerifier(security_config(settings, "X", "OAUTHBEARER"), lambda: NOW)


@cache
def _issued() -> dict[bytes, None]:
    """The tokens that the issuer has made for alice, whole."""
    return {data: None for title, data in read_corpus("jose").items() if title.startswith("valid-")}


def check_jose(data: bytes) -> str:
    """A token is valid only if the issuer has signed exactly this header and payload."""
    try:
        user = _verifier()(data.decode("latin-1")).user
    except ValueError as error:
        return _words(error)
    if user != "alice" or data.rpartition(b".")[0] not in {token.rpartition(b".")[0] for token in _issued()}:
        raise Finding(f"a forged token is valid, for {user!r}")
    return "valid"


def mutate_jose(pick: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a segment behind its Base64: header, payload or signature."""
    parts = data.split(b".")
    others = other.split(b".")
    index = pick.randrange(len(parts))
    inside = (
        base64.urlsafe_b64decode(parts[index] + b"=" * (-len(parts[index]) % 4)) if _is_base64(parts[index]) else b""
    )
    if index == 0 and pick.random() < 0.5:
        public = KeySet.import_key_set(json.loads(KEYS.read_bytes())).keys[0].as_pem(private=False)
        header = {"alg": pick.choice(("none", "HS256", "RS256", "ES256", "", None, 5)), "kid": pick.choice(_KEY_IDS)}
        header |= {name: pick.choice(_HEADERS) for name in pick.sample(("jwk", "jku", "crit", "b64", "zip", "x5c"), 2)}
        parts[0] = _base64(json.dumps(header).encode())
        if header["alg"] == "HS256":  # the issuer's public key as a shared secret
            parts[2:] = [_base64(hmac.digest(public, b".".join(parts[:2]), "sha256"))]
    else:
        parts[index] = _base64(mutated(pick, inside, others[min(index, len(others) - 1)], JOSE_WORDS))
    return b".".join(parts)


JOSE_WORDS = (
    b'"alg":"none"', b'"alg":"HS256"', b'"crit":["b64"]', b'"b64":false', b'"zip":"DEF"', b'"kid":', b'"sub":"root"',
    b'"exp":1e999', b'"exp":NaN', b'"iat":-1', b"[" * 500, b"{}", b"null", b'"sub":"\\ud800"', b".", b"..", b"=",
)  # fmt: skip
_KEY_IDS = ("es256", "rs256", "ed25519", "", None, 7, "../keys", "x" * 500)
_HEADERS: tuple[Any, ...] = (
    True,
    False,
    None,
    "DEF",
    ["b64"],
    [],
    {"kty": "oct", "k": "c2VjcmV0"},
    "https://elsewhere",
)


def _is_base64(text: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z0-9_-]+", text) is not None and len(text) % 4 != 1


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


# -- SASL

PASSWORD = "secret"
_SALT, _ROUNDS = b"salt-of-alice", 4_096


@cache
def _users() -> Users:
    with tempfile.TemporaryDirectory(prefix="kohort-fuzz-users-") as folder:
        users = Users(Path(folder))
        for number, name in ((1, "sha256"), (2, "sha512")):
            users.change_credentials((), [("alice", number, _ROUNDS, _SALT, _salted(name))])
        users.decoy_credential("nobody", "SCRAM-SHA-256")  # reads the secret of made-up salts
        return users


@cache
def _salted(name: str) -> bytes:
    return hashlib.pbkdf2_hmac(name, PASSWORD.encode(), _SALT, _ROUNDS)


def check_plain(data: bytes) -> str:
    """Only alice's password lets alice in."""
    exchange = PlainExchange({"alice": PASSWORD}, _users())
    try:
        exchange.process_token(data)
    except LoginRefused as error:
        return _words(error)
    if exchange.user != "alice" or data not in (b"\0alice\0secret", b"alice\0alice\0secret"):
        raise Finding(f"a login as {exchange.user!r} without the password")
    return "logged in"


def check_scram(data: bytes) -> str:
    """Only a proof by the password, over the messages as they were sent, lets alice in.

    The input is the first message, a line break, and the last message. There `@nonce@` and `@proof@` stand for what an
    honest client fills in. The digit before the first message chooses the mechanism.
    """
    mechanism, name = ("SCRAM-SHA-512", "sha512") if data[:1] == b"5" else ("SCRAM-SHA-256", "sha256")
    first, _, last = data[1:].partition(b"\n")
    exchange = ScramExchange(mechanism, _users())
    try:
        challenge = exchange.process_token(first)
    except LoginRefused as error:
        return f"first: {_words(error)}"
    if exchange.user is not None:
        raise Finding("a login after one message")
    nonce = challenge.partition(b",s=")[0].removeprefix(b"r=")
    last = last.replace(b"@nonce@", nonce)
    unproved = last.partition(b",p=")[0]
    bare = first.split(b",", 2)[2]
    key = hmac.digest(_salted(name), b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, key).digest(), b",".join((bare, challenge, unproved)), name)
    proof_bytes = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    answer = last.replace(b"@proof@", base64.b64encode(proof_bytes))
    try:
        exchange.process_token(answer)
    except LoginRefused as error:
        return f"last: {_words(error)}"
    if b"@proof@" not in last or exchange.user != "alice" or nonce not in answer:
        raise Finding(f"a login as {exchange.user!r} without a proof")
    return "logged in"


def check_bearer(data: bytes) -> str:
    """Only a token of the issuer lets alice in."""
    exchange = BearerExchange(_verifier())
    try:
        answer = exchange.process_token(data)
    except LoginRefused as error:
        return _words(error)
    if answer:
        if exchange.user is not None:
            raise Finding(f"a login as {exchange.user!r} with the answer {answer!r}")
        return f"answered: {_words(exchange.why)}"
    if exchange.user != "alice" or not any(token.rpartition(b".")[0] in data for token in _issued()):
        raise Finding(f"a login as {exchange.user!r} without a token")
    return "logged in"


# -- Records

_WALK_RULES = ((-(2**63), 2**63 - 1, 2**31 - 1, False), (0, 2**39, 200, True))
_DECODED = DecodeOptions(max_batch_bytes=1 << 20, max_bytes=1 << 22)
_VALIDATOR = BatchValidator("fuzz-0", LogConfig(message_timestamp_after_max_ms=2**62), ratio=1)
"""At most 1 MiB of decompressed records, as the broker's own limit is a multiple of the batch's."""


def check_records(data: bytes) -> str:
    """Both walks and both decoders agree, and every batch that is accepted can be read whole."""
    try:
        header = parse_header(data)
    except KafkaError as error:
        return f"header: {_words(error)}"
    _compare_walks(data, header)
    outcome = _compare_decoders(RecordSet("t", 0, data, -(2**63)))
    try:
        try:
            accepted, headers = _VALIDATOR.validate(bytearray(data), 1_700_000_000_000, LoopBudget())
        except TooMuchForLoopError:
            accepted, headers = _VALIDATOR.validate(bytearray(data), 1_700_000_000_000)
    except KafkaError as error:
        return f"{outcome}; {_words(error)}"
    count = sum(found.records_count for found in headers)
    end, placed = assign_offsets(bytearray(accepted), headers, 0, 0)
    whole = b"".join(placed) if isinstance(placed, list) else bytes(placed)
    decoded = _decoded(RecordSet("t", 0, whole, 0))
    rows = sum(1 for _ in decoded.records())
    if any(part.damage for part in decoded.ranges) or rows != count or end != count:
        raise Finding(f"accepted, and {rows} of {count} records can be read, to {end}: {decoded.ranges}")
    return f"{outcome}; accepted"


def _compare_walks(data: bytes, header: Any) -> None:
    if not record_walk.COMPILED or header.attributes & 7 or len(data) < HEADER_SIZE:
        return
    compiled: Any = record_walk.compiled
    for rules in _WALK_RULES:
        slow = record_walk.walk_records_in_python(data, HEADER_SIZE, header, rules)
        fast = compiled.walk_records(data, HEADER_SIZE, header, rules)
        same = fast[:2] == slow[:2] and list(fast[4] or ()) == [tuple(entry) for entry in slow[4] or ()]
        if not same or (slow[0] == 0 and fast[2:4] != slow[2:4]):
            raise Finding(f"the walks differ: compiled {fast}, plain {slow}")
    for timestamp, offset in ((0, 0), (2**62, 5), (-1, 1)):
        slow_found = record_walk.find_record_in_python(data, HEADER_SIZE, header, timestamp, offset)
        fast_found = compiled.find_record(data, HEADER_SIZE, header, timestamp, offset)
        if slow_found != fast_found:
            raise Finding(f"the searches differ: compiled {fast_found}, plain {slow_found}")


def _decoded(records: RecordSet) -> Decoded:
    from kohort.columns import choice

    ranges, block = choice.decode_block([records], _DECODED)
    return Decoded([records], _DECODED, ranges, block)


def _compare_decoders(records: RecordSet) -> str:
    fast = _decoded(records)
    if COMPILED:
        ranges, block = reference.decode_block([records], _DECODED)
        slow = Decoded([records], _DECODED, ranges, block)
        if fast.ranges != slow.ranges or not fast.to_arrow().equals(slow.to_arrow()):
            raise Finding(f"the decoders differ: compiled {fast.ranges}, plain {slow.ranges}")
    damage = fast.ranges[0].damage if fast.ranges else None
    return "read" if damage is None else f"damage: {damage.kind.name}"


def mutate_records(pick: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a batch, then make its length and checksum right again."""
    changed = bytearray(mutated(pick, data, other))
    if len(changed) > HEADER_SIZE:
        struct.pack_into(">i", changed, 8, len(changed) - 12)
        if pick.random() < 0.7:
            changed[16] = 2
        if pick.random() < 0.3:
            (count,) = struct.unpack_from(">i", changed, 57)
            struct.pack_into(">i", changed, 23, max(-(2**31), count - 1))
        struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


# -- Frames of regions

REGION_TOKEN, REGION_NONCES = b"t" * 32, b"l" * 32 + b"c" * 32
REGION_BODIES = (b"", b"one", b"two" * 100, b"last")


def region_stream() -> bytes:
    """The frames that a member sends, from the first on."""
    sealer = LinkFrames(REGION_TOKEN, REGION_NONCES, is_caller=True).sealer
    return b"".join(map(sealer.seal_frame, REGION_BODIES))


def check_region_frames(data: bytes) -> str:
    """The bodies that arrive are those that were sent, from the first on and in their order."""
    handshake = ListenerHandshake(REGION_TOKEN)
    handshake.nonce = REGION_NONCES[:32]
    said = data[: ListenerHandshake.SAID_BYTES]
    try:
        _, frames = handshake.check_and_answer(said)
    except PermissionError:
        if said == REGION_NONCES[32:] + token_proof(REGION_TOKEN, "caller", REGION_NONCES):
            raise Finding("an honest member is refused") from None
        frames = LinkFrames(REGION_TOKEN, REGION_NONCES, is_caller=False)
        outcome = "stranger"
    else:
        if said[32:] != token_proof(REGION_TOKEN, "caller", REGION_NONCES[:32] + said[:32]):
            raise Finding("a stranger is let in")
        outcome = "member"
    rest, size = data[ListenerHandshake.SAID_BYTES :], 1 + sum(data[-2:])
    bodies: list[bytes] = []
    try:
        for at in range(0, len(rest), size):
            bodies += frames.parser.feed(rest[at : at + size])
    except ValueError as error:
        outcome += f": {_words(error)}"
    if bodies != list(REGION_BODIES[: len(bodies)]):
        raise Finding(f"bodies that nobody sent: {bodies!r}")
    return f"{outcome}, {len(bodies)} bodies"


def _check_message(decode: Callable[[bytes], Any], data: bytes) -> str:
    try:
        message = decode(data)
    except UnknownMessageError as error:
        return _words(error)
    again = encode_message(message)
    if encode_message(decode(again)) != again:
        raise Finding(f"{message!r} is another message after it was encoded")
    return type(message).__name__


def check_region_said(data: bytes) -> str:
    """A message to a control plane is one, or is refused."""
    return _check_message(decode_report, data)


def check_region_heard(data: bytes) -> str:
    """A message to a member is one, or is refused."""
    return _check_message(decode_order, data)


def check_region_fact(data: bytes) -> str:
    """A record of the region's topic is a fact, or is refused. Key and value are parted by a line break."""
    key, _, value = data.partition(b"\n")
    region_in_record_key(key)
    region_in_claim_key(key)
    try:
        fact = decode_fact(key, value)
    except CorruptDataError as error:
        return _words(error)
    encoded = encode_fact_value(fact)
    if encode_fact_value(decode_fact(encode_fact_key(fact), encoded)) != encoded:
        raise Finding(f"{fact!r} is another fact after it was encoded")
    return type(fact).__name__


# -- Push frames


def check_push(data: bytes) -> str:
    """A frame is a message that encodes to one with the same meaning, or is refused."""
    outcomes = []
    decoders: tuple[Any, ...] = (
        push.ClusterMetadataRequest,
        push.ClusterMetadataResponse,
        push.RegisterConsumerRequest,
        push.ErrorResponse,
    )
    for kind in decoders:
        try:
            message = kind.decode(data)
        except WireError as error:
            outcomes.append(_words(error))
            continue
        outcomes.append(kind.__name__)
        if kind.decode(_unframed(message.encode_frame())) != message:
            raise Finding(f"{message!r} is another message after it was encoded")
    for read in (push.decode_coordinator_request, lambda frame: push.decode_ping_response(frame, auto_commit=True)):
        try:
            outcomes.append(type(read(data)).__name__)
        except WireError as error:
            outcomes.append(_words(error))
    try:
        subscription = push.parse_topic_count(data.decode("latin-1"))
        if push.parse_topic_count(push.format_topic_count(subscription)) != subscription:
            raise Finding(f"{subscription!r} is another subscription after it was written")
        outcomes.append("a subscription")
    except WireError as error:
        outcomes.append(_words(error))
    return " ".join(outcomes)


def _unframed(encoded: bytes) -> bytes:
    return encoded[4:] if int.from_bytes(encoded[:4], "big") == len(encoded) - 4 else encoded


# -- ACLs, patterns and certificates

_OPERATIONS = [number for number in AclOperation if number not in (AclOperation.ANY, AclOperation.ALL) and number > 0]
_PATTERNS = (AclPattern.LITERAL, AclPattern.PREFIXED)
_PERMISSIONS = (AclPermission.ALLOW, AclPermission.DENY)


def check_acls(data: bytes) -> str:
    """The index decides as a plain reading of the rules does, also after rules are gone.

    A line is a rule: four letters for type, pattern, operation and permission, then name, principal and host, with
    slashes between.
    """
    rules: list[AclRule] = []
    names = {"", "*"}
    callers = {("User:alice", "10.0.0.1")}
    for line in data.decode("latin-1").split("\n")[:40]:
        numbers, *texts = line.split("/", 3)
        if len(numbers) < 4 or len(texts) < 3:
            names.add(line)
            continue
        kind, pattern, operation, permission = (ord(letter) for letter in numbers[:4])
        operations = [*_OPERATIONS, AclOperation.ALL]
        rule = AclRule(
            2 + kind % 3, texts[0], _PATTERNS[pattern % 2], texts[1], texts[2],
            operations[operation % len(operations)], _PERMISSIONS[permission % 2],
        )  # fmt: skip
        rules.append(rule)
        names |= {rule.name, rule.name[:-1], rule.name + "x"}
        callers.add((rule.principal, rule.host))
    index = AclIndex(rules)
    _compare_decisions(index, rules, names, callers)
    index.remove_rules(rules[::2])
    left = [rule for rule in dict.fromkeys(rules) if rule not in rules[::2]]
    _compare_decisions(index, left, names, callers)
    if list(index) != left:
        raise Finding(f"rules are left over: {list(index)}")
    return f"{len(rules)} rules"


def _compare_decisions(index: AclIndex, rules: list[AclRule], names: set[str], callers: set[tuple[str, str]]) -> None:
    for name in sorted(names)[:30]:
        for principal, host in sorted(callers)[:6]:
            for operation in _OPERATIONS[::3]:
                for default in (False, True):
                    found = index.is_allowed(principal, host, operation, (2, name), default)
                    if found != _plainly_decided(rules, principal, host, operation, name, default):
                        raise Finding(f"{principal!r} at {host!r}: {operation} on {name!r} is {found} by {rules}")


def _plainly_decided(rules: list[AclRule], principal: str, host: str, operation: int, name: str, default: bool) -> bool:
    named = [
        rule
        for rule in rules
        if rule.resource_type == 2
        and (name.startswith(rule.name) if rule.pattern == AclPattern.PREFIXED else rule.name in (name, "*"))
    ]
    matching = [
        rule
        for rule in named
        if rule.principal in (principal, "User:*")
        and (rule.host == "*" or normalized_address(rule.host) == normalized_address(host))
    ]
    allowing = IMPLIES.get(AclOperation(operation)) or {AclOperation.ALL, operation}
    if any(rule.permission == AclPermission.DENY and rule.operation in (operation, 2) for rule in matching):
        return False
    allowed = any(rule.permission == AclPermission.ALLOW and rule.operation in allowing for rule in matching)
    return allowed if named else default


def check_pattern(data: bytes) -> str:
    """A pattern selects names or is refused; two ways of matching agree. The names follow it in lines."""
    pattern, *names = data.decode(errors="surrogatepass" if data.isascii() else "replace").split("\n")[:50]
    try:
        found = name_patterns.matching_names(pattern, names)
    except InvalidInputError as error:
        return _words(str(error).rpartition(": ")[2])
    engine: Any = name_patterns.load_re2()
    if name_patterns._PLAIN.fullmatch(pattern) is None or engine is None:
        return "matched by RE2"
    compiled = engine.compile(pattern)
    if found != [name for name in names if compiled.fullmatch(name)]:
        raise Finding(f"{pattern!r} selects {found} of {names}")
    return "matched plainly"


def check_certificate(data: bytes) -> str:
    """A certificate has a subject, or is refused."""
    try:
        certificate_subject(data)
    except ValueError as error:
        return _words(error)
    return "a subject"


# -- Requests


def check_request(data: bytes) -> str:
    """The body of a request is a message, or is refused."""
    try:
        header, body = decode_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or not api.request.MIN_VERSION <= header.api_version <= api.request.MAX_VERSION:
            return "no such request"
        message, _ = api.request.decode_prefix(body, header.api_version)
    except WireError as error:
        return _words(error)
    repr(message)
    return api.name


def _words(error: Any) -> str:
    """Return the text of an error without the values in it."""
    return re.sub(r"[^A-Za-z ]+", "#", re.sub(r"'.*'|\".*\"|^fuzz-0: ", "", str(error)))[:70]


_PACKED = (
    b"\xc0", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xca\x7f\xc0\0\0",
    b"\x91" * 1_100,
)  # fmt: skip
PARSERS: tuple[ParserTarget, ...] = (
    ParserTarget("jose", check_jose, JOSE_WORDS, mutate_jose),
    ParserTarget("sasl-plain", check_plain, (b"\0", b"alice", b"secret", b"\0\0", b"\xc3\xa9")),
    ParserTarget("sasl-scram", check_scram, (b"n,,", b"y,,", b"a=alice,", b"m=x,", b"@proof@", b"@nonce@", b"=2C")),
    ParserTarget("sasl-oauthbearer", check_bearer, (b"\x01", b"auth=Bearer ", b"n,a=alice,", b"\x01\x01", b"host=h")),
    ParserTarget("records", check_records, (), mutate_records),
    ParserTarget("region-frames", check_region_frames, (b"\0\0\0\3", b"\x01\0\0\0", b"\0\xff\xff\xff")),
    ParserTarget("region-said", check_region_said, _PACKED),
    ParserTarget("region-heard", check_region_heard, _PACKED),
    ParserTarget("region-fact", check_region_fact, (b"[", b'["term"', b"[" * 900, b"\xc0", b"\xdd\xff\xff\xff\xff")),
    ParserTarget("push", check_push, (b"\x50\0", b"\x50\1", b"\x50\4", b"*1*", b"!1!", b'{"t":1}', b"1-0", b"-" * 5)),
    ParserTarget("acls", check_acls, (b"/*/", b"/User:*/", b"/::1", b"\n", b"/10.0.0.1", b"BBBB/")),
    ParserTarget("patterns", check_pattern, (b".*", b"(a+)+$", b"|", b"{1,999}", b"\\", b"^", b"$", b"(?i)", b"\n")),
    ParserTarget("certificates", check_certificate, (b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\x06\0", b"\x31\0")),
    ParserTarget("requests", check_request, (b"\0\1", b"\xff\xff\xff\xff\x0f", b"\0\0\0\0")),
)  # fmt: skip
