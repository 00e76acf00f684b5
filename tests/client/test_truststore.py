"""Trust stores of Java's clients, made by Java's own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kohort.broker.security.settings import SecurityConfig
from kohort.client.net.security import parse_jaas_options, sasl_mechanism, tls_context
from kohort.client.settings import ConnectionConfig, client_config
from kohort.errors import InvalidInputError
from kohort.settings.config import from_properties
from tests.support.secured_kafka import make_certificates

needs_keytool = pytest.mark.skipif(
    shutil.which("keytool") is None or shutil.which("openssl") is None, reason="keytool and openssl make the stores"
)
PASSWORD = "secret word"


def keytool(folder: Path, *arguments: str) -> None:
    command = ["keytool", *arguments, "-storepass", PASSWORD, "-noprompt"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, in stores of both kinds; `keys.jks` has a private key and its certificate only."""
    folder = tmp_path_factory.mktemp("stores")
    make_certificates(folder)
    for kind in ("jks", "pkcs12"):
        keytool(folder, "-importcert", "-alias", "ca", "-file", "ca.pem", "-keystore", f"ca.{kind}", "-storetype", kind)
    subject = ("-dname", "CN=broker", "-keyalg", "RSA", "-keypass", PASSWORD)
    for name in ("keys.jks", "both.jks"):
        keytool(folder, "-genkeypair", "-alias", "key", *subject, "-keystore", name, "-storetype", "jks")
    keytool(folder, "-importcert", "-alias", "ca", "-file", "ca.pem", "-keystore", "both.jks", "-storetype", "jks")
    return folder


def trusted_by(location: Path, **settings: Any) -> list[str]:
    """Common names of the authorities that a client with this store trusts."""
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(location)}
    context = tls_context(client_config(ConnectionConfig, None, {**given, **settings}))
    assert context is not None
    found: list[Any] = context.get_ca_certs()
    return [dict(part[0] for part in certificate["subject"])["commonName"] for certificate in found]


def password(word: str = PASSWORD) -> dict[str, str]:
    return {"ssl.truststore.password": word}


@needs_keytool
def test_the_authorities_of_a_java_key_store_are_trusted(stores: Path) -> None:
    for name in ("ca.jks", "both.jks"):
        assert trusted_by(stores / name) == trusted_by(stores / name, **password()) == ["trial"]
    assert trusted_by(stores / "ca.jks", **{"ssl.truststore.type": "JKS"}) == ["trial"]
    assert trusted_by(stores / "ca.pem", **{"ssl.truststore.type": "PEM"}) == ["trial"]


@needs_keytool
def test_a_store_that_can_not_be_used_is_reported(stores: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"ca.jks: ssl.truststore.password is wrong"):
        trusted_by(stores / "ca.jks", **password("another"))
    with pytest.raises(InvalidInputError, match=r"keys.jks holds no certificate of an authority"):
        trusted_by(stores / "keys.jks", **password())
    whole = (stores / "ca.jks").read_bytes()
    for size in range(4, len(whole) - 20, 37):
        (tmp_path / "cut.jks").write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match=r"cut.jks is a damaged JKS store|cut.jks holds no certificate"):
            trusted_by(tmp_path / "cut.jks")
    (tmp_path / "changed.jks").write_bytes(whole[:-30] + bytes(10) + whole[-20:])
    with pytest.raises(InvalidInputError, match="or the file was changed"):
        trusted_by(tmp_path / "changed.jks", **password())
    (tmp_path / "old.jceks").write_bytes(b"\xce\xce\xce\xce" + whole[4:])
    with pytest.raises(InvalidInputError, match="is a JCEKS store: make PKCS12 or JKS of it"):
        trusted_by(tmp_path / "old.jceks")
    with pytest.raises(InvalidInputError, match="can't load TLS files .*none.jks"):
        trusted_by(tmp_path / "none.jks")


@needs_keytool
def test_pkcs12_is_read_where_the_package_for_it_is_there(stores: Path) -> None:
    pytest.importorskip("cryptography")
    assert trusted_by(stores / "ca.pkcs12", **password()) == ["trial"]
    with pytest.raises(InvalidInputError, match=r"ssl.truststore.password is wrong"):
        trusted_by(stores / "ca.pkcs12", **password("another"))


@needs_keytool
def test_pkcs12_without_the_package_says_what_to_do(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(InvalidInputError, match=r"the package cryptography: .*openssl pkcs12 -in ca.pkcs12 -nokeys"):
        trusted_by(stores / "ca.pkcs12", **password())


JAVAS = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    "text",
    [
        f'{JAVAS} required username="alice" password="a\\"b\\\\c d";',
        f'{JAVAS} required\n  username=alice\n  password="a\\"b\\\\c d"\n  tokenauth="false";',
        f'{JAVAS}  required  password = "a\\"b\\\\c d"  username = "alice" ; ',
        f"{JAVAS} required username='alice' password='a\"b\\\\c d';",
        f"{JAVAS}\trequired\n\tusername='al\\151ce'\n\tpassword='a\\\"b\\134c d';\n",
        f'kafkashaded.{JAVAS} required username=\'alice\' password="a\\"b\\\\c d";',
    ],
)
def test_a_login_is_read_as_javas_clients_write_it(text: str) -> None:
    options = parse_jaas_options(text)
    assert (options["username"], options["password"]) == ("alice", 'a"b\\c d')
    config = client_config(
        ConnectionConfig, None, {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text}
    )
    assert sasl_mechanism(config).first_message() == b'\0alice\0a"b\\c d'


def test_a_login_may_have_every_character_of_a_connection_string_in_either_quotes() -> None:
    """Apicurio Registry Operator #75, camel-kamelets #2975: single quotes, semicolons and equal signs in a password."""
    password = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a'c/+="
    for quote in ('"', "'"):
        written = password.replace(quote, f"\\{quote}")
        found = parse_jaas_options(
            f"{JAVAS} required username={quote}$ConnectionString{quote} password={quote}{written}{quote};"
        )
        assert found == {"username": "$ConnectionString", "password": password}
    assert parse_jaas_options(f"{JAVAS} required a='\\n\\t\\q\\8\\0';")["a"] == "\n\tq8\0"


@pytest.mark.parametrize(
    ("options", "after"),
    [
        ('username="a" password="sec"ret"', "option username"),
        ("username=a password=Endpoint=sb://x/;SharedAccessKey=secret", "option password"),
        ("username='a' password='secret", "option username"),
        ("password", "before its first option"),
        ("username='a'; x.PlainLoginModule required password='secret'", "option username"),
    ],
)
def test_a_login_that_java_can_not_read_is_refused_and_not_cut_off(options: str, after: str) -> None:
    """From kafka-gitops #43: a quote within a password ended it, and the login failed with the rest of it."""
    with pytest.raises(InvalidInputError, match=f"{after}.* must be in double or single quotes") as caught:
        parse_jaas_options(f"{JAVAS} required {options};")
    assert "sec" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "// production\n{0} required // flag\n username='a' /* b */ password='b'; // c",
        "\n{0}\n    required\n    username='a'\n    password='b'\n;\n",
    ],
    ids=["comments", "lines"],
)
def test_a_login_over_lines_and_with_comments_is_read_as_java_reads_it(text: str) -> None:
    assert parse_jaas_options(text.format(JAVAS)) == {"username": "a", "password": "b"}


def test_no_secret_is_in_the_repr_of_a_configuration() -> None:
    """A token endpoint's URL may have a login, and a PEM key is the key itself, in clients and brokers."""
    given: dict[str, Any] = {
        "ssl.keystore.key": "hidden",
        "ssl.key.password": "hidden",
        "sasl.jaas.config": "hidden",
        "sasl.oauthbearer.token.endpoint.url": "https://user:hidden@127.0.0.1/token",
        "sasl.oauthbearer.client.credentials.client.secret": "hidden",
        "sasl.oauth.token": lambda: "hidden",
    }
    assert "hidden" not in repr(from_properties(ConnectionConfig, given))
    assert "hidden" not in repr(SecurityConfig(keystore_key="hidden"))


def test_slashes_of_a_password_are_no_comment() -> None:
    options = parse_jaas_options(f"{JAVAS} required username=a password='sb://x/*y*/' other=a//b;")
    assert options == {"username": "a", "password": "sb://x/*y*/", "other": "a//b"}


@pytest.mark.parametrize(
    "text", ['username="a" password="b";', f'{JAVAS} required username="a"', "x", "//" * 400, f"{JAVAS} /*"]
)
def test_an_invalid_login_is_reported_with_an_example(text: str) -> None:
    config = client_config(ConnectionConfig, None, {"security.protocol": "SASL_SSL", "sasl.jaas.config": text})
    with pytest.raises(InvalidInputError, match="must be a login module.*username="):
        sasl_mechanism(config)
