"""Verification of bearer tokens, with keys from a file and from a server."""

from __future__ import annotations

import base64
import hmac
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from kohort.broker.security.key_sets import KEY_SET_BYTES_MAX, IssuerKeys
from kohort.broker.security.settings import SecurityConfig, security_config
from kohort.broker.security.tokens import TokenVerifier
from kohort.errors import InvalidInputError

KEYS: dict[str, Any] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa"}),
    "PS256": RSAKey.generate_key(2048, {"kid": "pss"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed"}),
}
NOW = 1_800_000_000


def config(folder: Path, **others: str) -> SecurityConfig:
    file = folder / "keys.json"
    if not file.exists():
        file.write_text(json.dumps(KeySet([*KEYS.values()]).as_dict(private=False)))
    chosen = {
        "sasl.oauthbearer.jwks.endpoint.url": file.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        **{key.replace("_", "."): value for key, value in others.items()},
    }
    return security_config(chosen, "X", "OAUTHBEARER")


def token(algorithm: str = "ES256", **claims: Any) -> str:
    key = KEYS[algorithm]
    chosen = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 60, "iss": "https://issuer", "aud": ["kafka"], **claims}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid}, chosen, key, algorithms=[algorithm])


@pytest.mark.parametrize("algorithm", KEYS)
def test_token_of_the_issuer_names_the_user(tmp_path: Path, algorithm: str) -> None:
    verified = TokenVerifier(config(tmp_path), lambda: NOW)(token(algorithm))
    assert verified == ("alice", (NOW + 60) * 1000)


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "no usable claim exp"),
        ({"exp": "soon"}, "no usable claim exp"),
        ({"exp": True}, "no usable claim exp"),
        ({"iat": None}, "no usable claim iat"),
        ({"iat": NOW + 31}, "future"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iss": "https://elsewhere"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "web"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"sub": None}, "no usable claim sub"),
        ({"sub": " "}, "no usable claim sub"),
        ({"sub": 7}, "no usable claim sub"),
    ],
)
def test_token_that_does_not_fit_is_refused(tmp_path: Path, claims: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TokenVerifier(config(tmp_path), lambda: NOW)(token(**claims))


def test_clocks_may_differ_by_the_skew(tmp_path: Path) -> None:
    verifier = TokenVerifier(config(tmp_path), lambda: NOW)
    assert verifier(token(exp=NOW - 29, iat=NOW + 29, nbf=NOW + 29)).user == "alice"


def url_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def part(content: object) -> str:
    return url_text(json.dumps(content).encode())


def test_forged_tokens_are_refused(tmp_path: Path) -> None:
    verifier = TokenVerifier(config(tmp_path), lambda: NOW)
    good = token("RS256")
    head, body, signature = good.split(".")
    claims = {"sub": "root", "iat": NOW, "exp": NOW + 60, "iss": "https://issuer", "aud": "kafka"}
    public = KEYS["RS256"].as_pem(private=False)
    symmetric = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims)}"
    strangers = RSAKey.generate_key(2048, {"kid": "rsa"})
    forged = [
        f"{part({'alg': 'none'})}.{part(claims)}.",
        f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(claims)}.{signature}",
        f"{head}.{part(claims)}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{symmetric}.{url_text(hmac.digest(public, symmetric.encode(), 'sha256'))}",
        jwt.encode({"alg": "RS256", "kid": "rsa"}, claims, strangers),
        jwt.encode({"alg": "RS256", "kid": "rsa", "jwk": strangers.as_dict(private=False)}, claims, strangers),
        "", ".", "..", "a.b.c", "é.é.é", f"{part([])}.{part(claims)}.{signature}", "[" * 5000,
    ]  # fmt: skip
    for text in forged:
        with pytest.raises(ValueError, match="."):
            verifier(text)
    assert verifier(good).user == "alice"


def test_random_and_mutated_tokens_raise_nothing_else(tmp_path: Path) -> None:
    verifier = TokenVerifier(config(tmp_path), lambda: NOW)
    good = token()
    for seed in range(300):
        noise = os.urandom(3)
        at = seed % len(good)
        with pytest.raises(ValueError, match="."):
            verifier(good[:at] + noise.decode("latin-1") + good[at + 3 :])


@contextmanager
def key_server(document: list[bytes]) -> Iterator[tuple[str, list[float]]]:
    """A server of keys; and the times when it was asked."""
    asked: list[float] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(time.monotonic())
            redirected = document[0].startswith(b"http")
            self.send_response(302 if redirected else 200 if document[0] else 500)
            if redirected:
                self.send_header("Location", document[0].decode())
            self.end_headers()
            self.wfile.write(document[0])

        def log_message(self, *_args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def keys_document(*algorithms: str) -> bytes:
    return json.dumps(KeySet([KEYS[name] for name in algorithms]).as_dict(private=False)).encode()


def test_keys_are_read_again_for_an_unknown_key_but_not_for_each_stranger(tmp_path: Path) -> None:
    document = [keys_document("RS256")]
    clock = [100.0]
    with key_server(document) as (url, asked):
        keys = IssuerKeys(config(tmp_path), url, lambda: clock[0])
        assert [key.kid for key in keys.current_keys("rsa")] == ["rsa"]
        document[0] = keys_document("RS256", "ES256")
        for _ in range(50):
            keys.current_keys("ec")
        assert len(asked) == 1, "strangers can't make it ask again and again"
        clock[0] += 11
        assert {key.kid for key in keys.current_keys("ec")} == {"rsa", "ec"}
        assert len(asked) == 2


def test_keys_do_not_come_from_where_others_could_replace_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with key_server([b"http://192.0.2.1/keys"]) as (url, asked):
        keys = IssuerKeys(config(tmp_path), url)
        with pytest.raises(ValueError, match="could not be read"):
            keys.current_keys("rsa")
        assert len(asked) == 1
        assert "redirected to http://192.0.2.1/keys" in caplog.text


def test_keys_in_use_stay_when_their_server_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    document = [keys_document("RS256")]
    clock = [100.0]
    with key_server(document) as (url, asked):
        keys = IssuerKeys(config(tmp_path), url, lambda: clock[0])
        keys.current_keys("rsa")
        for damage in (b"", b"{", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b"x" * (KEY_SET_BYTES_MAX + 1)):
            document[0] = damage
            clock[0] += 4_000
            assert [key.kid for key in keys.current_keys("rsa")] == ["rsa"]
        assert len(asked) == 7
        assert "keys could not be read" in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"}, "jwks.endpoint.url"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/keys"}, "jwks.endpoint.url"),
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "jwks.endpoint.url"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer"),
    ],
)
def test_missing_settings_are_refused_at_the_start(settings: dict[str, Any], text: str) -> None:
    given = {
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
    } | settings
    with pytest.raises(InvalidInputError, match=text):
        TokenVerifier(security_config(given, "X", "OAUTHBEARER"))
