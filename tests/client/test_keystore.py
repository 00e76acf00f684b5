"""The client's certificate for mutual TLS: out of key stores that Java's own tool makes, and out of PEM."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kohort.client.net.security import tls_context
from kohort.client.settings import ConnectionConfig, client_config
from kohort.errors import InvalidInputError
from tests.support.secured_kafka import make_certificates, openssl

pytestmark = pytest.mark.skipif(
    shutil.which("keytool") is None or shutil.which("openssl") is None, reason="keytool and openssl make the stores"
)
STORE, KEY = "store word", "key word"


def keytool(folder: Path, *arguments: str) -> None:
    subprocess.run(["keytool", *arguments, "-noprompt"], cwd=folder, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's certificate in a store of each kind; in `own.jks` the key has a password of its own."""
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder)
    openssl(folder, "pkcs12", "-export", "-in", "client.pem", "-out", "client.p12", "-passout", f"pass:{STORE}")
    source = ("-importkeystore", "-srckeystore", "client.p12", "-srcstoretype", "PKCS12", "-srcstorepass", STORE)
    for name, password in (("client.jks", STORE), ("own.jks", KEY)):
        alias = ("-srcalias", "1", "-destkeypass", password)
        keytool(folder, *source, *alias, "-destkeystore", name, "-deststoretype", "JKS", "-deststorepass", STORE)
    keytool(
        folder,
        "-importcert",
        "-alias",
        "ca",
        "-file",
        "ca.pem",
        "-keystore",
        "ca.jks",
        "-storetype",
        "JKS",
        "-storepass",
        STORE,
    )
    return folder


def client_seen_by_a_server(stores: Path, **settings: Any) -> tuple[str, str]:
    """The common name in the certificate that a server is shown by such a client, and the version of TLS."""
    given = {"security.protocol": "SSL", **settings}
    if "ssl.truststore.certificates" not in given:
        given["ssl.truststore.location"] = str(stores / "ca.pem")
    context = tls_context(client_config(ConnectionConfig, None, given))
    assert context is not None
    wanting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(stores / "ca.pem"))
    wanting.verify_mode = ssl.CERT_REQUIRED
    wanting.load_cert_chain(str(stores / "broker.crt"), str(stores / "broker.key"))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname="localhost")
    server = wanting.wrap_bio(up, down, server_side=True)
    ready: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
                ready.add(end)
            except ssl.SSLWantReadError:
                continue
    assert ready == {client, server}
    certificate: Any = server.getpeercert()
    return dict(part[0] for part in certificate["subject"])["commonName"], str(server.version())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("client.jks", {"ssl.keystore.password": STORE}),
        ("client.jks", {"ssl.keystore.password": STORE, "ssl.keystore.type": "JKS", "ssl.key.password": STORE}),
        ("own.jks", {"ssl.keystore.password": STORE, "ssl.key.password": KEY}),
        ("client.p12", {"ssl.keystore.password": STORE, "ssl.keystore.type": "PKCS12"}),
        ("client.pem", {"ssl.keystore.type": "PEM"}),
    ],
)
def test_a_server_sees_the_certificate_of_a_key_store(stores: Path, name: str, more: dict[str, str]) -> None:
    if name.endswith("p12"):
        pytest.importorskip("cryptography")
    given = {"ssl.keystore.location": str(stores / name), **more}
    assert client_seen_by_a_server(stores, **given) == ("client", "TLSv1.3")


def test_a_server_sees_a_certificate_that_is_given_as_text(stores: Path) -> None:
    given = {
        "ssl.keystore.key": (stores / "client.p8").read_text(),
        "ssl.keystore.certificate.chain": (stores / "client.crt").read_text(),
        "ssl.truststore.certificates": f"# Zürich\n{(stores / 'ca.pem').read_text()}",
        "ssl.enabled.protocols": "TLSv1.1,TLSv1.2",
    }
    assert client_seen_by_a_server(stores, **given) == ("client", "TLSv1.2")
    shown = repr(client_config(ConnectionConfig, None, given | {"ssl.keystore.password": "hidden"}))
    assert "PRIVATE KEY" not in shown and "hidden" not in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl.keystore.location": "client.jks"}, "is a key store: give its password by ssl.keystore.password"),
        (
            {"ssl.keystore.location": "client.jks", "ssl.keystore.password": "x"},
            r"client\.jks: ssl\.keystore\.password is wrong, or the file was changed",
        ),
        (
            {"ssl.keystore.location": "own.jks", "ssl.keystore.password": STORE},
            r"own\.jks: ssl\.key\.password is wrong for its private key",
        ),
        ({"ssl.keystore.location": "ca.jks", "ssl.keystore.password": STORE}, "holds no private key"),
        (
            {"ssl.keystore.location": "client.p12", "ssl.keystore.password": "x"},
            r"client\.p12 is no PKCS12 store, or ssl\.keystore\.password is wrong",
        ),
        ({"ssl.keystore.location": "none.jks"}, "can't load TLS files .*none.jks"),
        ({"ssl.keystore.key": "x"}, "belong together: give both"),
        ({"ssl.truststore.certificates": "x", "ssl.truststore.location": "ca.pem"}, "give one of them"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "names no version that is spoken here"),
    ],
)
def test_an_identity_that_can_not_be_used_is_reported(stores: Path, given: dict[str, str], words: str) -> None:
    given = {name: str(stores / value) if name.endswith("location") else value for name, value in given.items()}
    with pytest.raises(InvalidInputError, match=words):
        tls_context(client_config(ConnectionConfig, None, {"security.protocol": "SSL", **given}))


def test_a_damaged_key_store_is_reported_wherever_it_breaks_off(stores: Path, tmp_path: Path) -> None:
    whole = (stores / "client.jks").read_bytes()
    for size in range(4, len(whole), 131):
        (tmp_path / "cut.jks").write_bytes(whole[:size])
        given = {"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / "cut.jks")}
        with pytest.raises(InvalidInputError, match=r"cut\.jks"):
            tls_context(client_config(ConnectionConfig, None, given | {"ssl.keystore.password": STORE}))
