"""The dashboard's logins over HTTP and TLS: sessions, cookies, limits, and what is refused without one."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.conftest import Dashboard, behind
from tests.lag.test_exporter_tls import is_served, trusting
from tests.support.processes import KOHORT, Start
from tests.support.secured_broker import more_certificates
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

from kohort import Admin, Broker
from kohort.cli.app import UsageError
from kohort.cli.dashboard import AccessOptions
from kohort.errors import InvalidInputError, NotAuthorizedError
from kohort.io.server_certificates import ServerCertificates

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from kohort.dashboard import logins
from kohort.dashboard.guard import DashboardAccess
from kohort.dashboard.logins import DashboardLogins, DashboardUsers
from kohort.dashboard.server import FILES

Serve = Callable[..., Dashboard]
NOBODY = "127.0.0.1:1"
PATHS = (
    "overview",
    "group?name=g",
    "topics",
    "topic?name=t",
    "records?topic=t",
    "regions",
    "region?name=r",
    "past?name=g",
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("alice=secret-1\nbob=secret-2\n")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def closed(serve: Serve, our_broker: Broker, users: Path, clock: Clock) -> Dashboard:
    """A dashboard whose users log in, with a clock of its own."""
    return serve(
        our_broker.bootstrap_servers, access=DashboardAccess(DashboardLogins(DashboardUsers(users, clock), clock))
    )


def log_in(dashboard: Dashboard, user: str = "alice", password: str = "secret-1") -> str:
    """The cookie of a new session."""
    status, headers, answer = dashboard.post("login", {"user": user, "password": password})
    assert (status, answer) == (200, {"user": user})
    return headers["set-cookie"].partition(";")[0]


def status_of(dashboard: Dashboard, path: str, cookie: str = "") -> int:
    return dashboard.send(f"/api/{path}", cookie=cookie)[0]


# -- Sessions


def test_nothing_but_the_login_s_own_files_is_served_without_a_session(closed: Dashboard) -> None:
    assert {path: status_of(closed, path) for path in (*PATHS, "events", "nothing")} == dict.fromkeys(
        (*PATHS, "events", "nothing"), 401
    )
    assert {closed.send(path)[0] for path in FILES} == {200}
    assert closed.get("session") == {"login": True, "user": None, "changes": False}
    name = f"kohort-session-{closed.server.address.rpartition(':')[2]}"
    for cookie in (f"{name}=", f"{name}=x", f"{name}=\u00e9", name, "a=b; =;"):
        assert status_of(closed, "overview", cookie) == 401


def test_session_serves_until_the_user_logs_out(closed: Dashboard) -> None:
    cookie = log_in(closed)
    assert status_of(closed, "overview", cookie) == 200
    assert json.loads(closed.send("/api/session", cookie=cookie)[2]) == {
        "login": True,
        "user": "alice",
        "changes": False,
    }
    status, headers, _ = closed.post("logout", {}, cookie=cookie)
    assert status == 200 and "Max-Age=0" in headers["set-cookie"]
    assert status_of(closed, "overview", cookie) == 401
    assert closed.post("logout", {}, cookie=cookie)[0] == 401


def test_cookie_is_hidden_from_scripts_and_from_other_sites(closed: Dashboard) -> None:
    _, headers, _ = closed.post("login", {"user": "alice", "password": "secret-1"})
    words = {word.strip().lower() for word in headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= words and "secure" not in words
    assert not any(word.startswith("domain") for word in words)
    assert len(headers["set-cookie"].partition("=")[2].partition(";")[0]) >= 43, "256 bits"


@pytest.mark.parametrize("other", ["theme=dark", 'a={"x":1}', "flag", "a{b}=1", "ga[x]=1", "=", "\u00e9=1"])
def test_cookies_of_others_on_the_host_do_not_matter(closed: Dashboard, other: str) -> None:
    cookie = log_in(closed)
    assert status_of(closed, "overview", f"{other}; {cookie}; {other}") == 200


def test_dashboards_of_a_host_have_cookies_of_their_own(
    serve: Serve, our_broker: Broker, closed: Dashboard, users: Path
) -> None:
    access = DashboardAccess(DashboardLogins(DashboardUsers(users)))
    another = serve(our_broker.bootstrap_servers, access=access)
    first, second = log_in(closed), log_in(another)
    assert first.partition("=")[0] != second.partition("=")[0]
    assert [status_of(board, "overview", f"{first}; {second}") for board in (closed, another)] == [200, 200]


def test_login_ends_the_session_that_the_browser_had(closed: Dashboard) -> None:
    before = log_in(closed)
    _, headers, _ = closed.post("login", {"user": "bob", "password": "secret-2"}, cookie=before)
    after = headers["set-cookie"].partition(";")[0]
    assert before != after
    assert (status_of(closed, "overview", before), status_of(closed, "overview", after)) == (401, 200)


def test_session_ends_with_its_time_its_user_or_its_password(closed: Dashboard, users: Path, clock: Clock) -> None:
    alice, bob = log_in(closed), log_in(closed, "bob", "secret-2")
    users.write_text("alice=another-secret\n")
    clock.now_s += logins.FILE_CHECK_S
    assert (status_of(closed, "overview", alice), status_of(closed, "overview", bob)) == (401, 401)
    alice = log_in(closed, "alice", "another-secret")
    users.write_text("alice=\n")
    clock.now_s += logins.FILE_CHECK_S
    assert status_of(closed, "overview", alice) == 200, "a file that can't be used changes nothing"
    clock.now_s += logins.SESSION_S
    assert status_of(closed, "overview", alice) == 401


def test_events_end_with_the_session(closed: Dashboard) -> None:
    cookie = log_in(closed)
    host, port = closed.server.address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", "/api/events", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline()
    assert closed.post("logout", {}, cookie=cookie)[0] == 200
    answer.read()  # ends, as the stream does
    connection.close()


def test_oldest_session_of_a_user_ends_with_one_too_many(closed: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "USER_SESSIONS_MAX", 2)
    bob = log_in(closed, "bob", "secret-2")
    cookies = [log_in(closed) for _ in range(3)]
    assert [status_of(closed, "overview", cookie) for cookie in (bob, *cookies)] == [200, 401, 200, 200]


def test_change_that_waits_is_refused_when_its_user_is_gone(
    serve: Serve, our_broker: Broker, users: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    access = DashboardAccess(DashboardLogins(DashboardUsers(users)), allows_changes=True)
    board = serve(our_broker.bootstrap_servers, access=access)
    cookie, other = log_in(board), log_in(board, "bob", "secret-2")
    asked = {"change": "delete", "group": name}
    token = board.post("preview", asked, cookie=cookie)[2]["token"]
    routes, free = board.server._routes, threading.Event()
    routes._changing.submit(free.wait)  # the change before takes long
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(board.post("preview", asked, cookie=other)[0])),
        threading.Thread(target=lambda: statuses.append(board.post("change", {"token": token}, cookie=cookie)[0])),
    ]
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda number=number: routes._waiting_changes == number, "it waits")  # type: ignore[misc]
    assert board.post("logout", {}, cookie=cookie)[0] == 200
    free.set()
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [200, 401]
    assert "[user alice] request change refused: the user's login ended" in caplog.text
    with Admin(our_broker.bootstrap_servers) as admin:
        assert name in {group.group_id for group in admin.list_groups()}


# -- Wrong logins


def test_wrong_logins_look_alike_and_are_logged_without_the_password(
    closed: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [
        closed.post("login", {"user": user, "password": password})
        for user, password in (
            ("alice", "secret-2"), ("nobody", "secret-1"), ("", ""), ("alice", ""), ("x\n[user bob]", "pass-word"),
            ("a" * 300, "b"), ("alice", "c" * 300),
        )
    ]  # fmt: skip
    assert {status for status, _, _ in answers} == {401}
    assert len({json.dumps(body) for _, _, body in answers}) == 1
    assert not any("set-cookie" in headers for _, headers, _ in answers)
    assert "[user alice] login from 127.0.0.1 refused" in caplog.text
    assert "secret-" not in caplog.text and "pass-word" not in caplog.text and "\n[user bob]" not in caplog.text


def test_tries_are_limited_and_allowed_again_with_time(closed: Dashboard, clock: Clock) -> None:
    cookie = log_in(closed, "bob", "secret-2")
    tries = [
        closed.post("login", {"user": f"u{number}", "password": "x"})[0] for number in range(logins.ADDRESS_TRIES + 2)
    ]
    assert tries == [401] * logins.ADDRESS_TRIES + [429] * 2
    status, _, answer = closed.post("login", {"user": "alice", "password": "secret-1"})
    assert status == 429 and "try again" in answer["error"], "a right password is not looked at"
    assert status_of(closed, "overview", cookie) == 200, "sessions go on"
    clock.now_s += logins.TRY_INTERVAL_S
    log_in(closed)


def test_tries_at_a_user_are_limited_from_all_addresses(users: Path, clock: Clock) -> None:
    tries = logins.FailedLoginLimits(clock)
    for number in range(logins.USER_TRIES):
        tries.check_attempt(f"192.0.2.{number}", "alice")
        tries.count_failure(f"192.0.2.{number}", "alice")
    with pytest.raises(logins.BusyError):
        tries.check_attempt("198.51.100.1", "alice")
    tries.check_attempt("198.51.100.1", "bob")
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        tries.check_attempt(address, "alice")  # nobody elsewhere can lock a user out of the machine itself
    for number in range(logins.ADDRESS_TRIES):
        tries.count_failure(f"2001:db8::{number:x}", f"u{number}")
    with pytest.raises(logins.BusyError):
        tries.check_attempt("2001:db8::ffff", "bob")


def test_addresses_of_loopback_are_counted_as_one(users: Path, clock: Clock) -> None:
    """Each user of the machine has 16 million of them: `curl --interface 127.0.0.2`."""
    logged_in = DashboardLogins(DashboardUsers(users, clock), clock)
    for number in range(logins.ADDRESS_TRIES):
        with pytest.raises(NotAuthorizedError):
            logged_in.log_in(f"127.0.{number}.2", "alice", f"guess-{number}")
    for address in ("127.1.2.3", "127.0.0.1", "::1", "::ffff:127.0.0.9"):
        with pytest.raises(logins.BusyError):
            logged_in.log_in(address, "alice", "one more guess")
    clock.now_s += logins.TRY_INTERVAL_S
    logged_in.log_in("127.0.0.1", "alice", "secret-1")


def test_addresses_of_ipv4_are_counted_apart_on_a_listener_of_ipv6(clock: Clock) -> None:
    tries = logins.FailedLoginLimits(clock)
    for number in range(logins.ADDRESS_TRIES):
        tries.count_failure("::ffff:192.0.2.1", f"u{number}")
    for address in ("::ffff:192.0.2.1", "192.0.2.1"):
        with pytest.raises(logins.BusyError):
            tries.check_attempt(address, "alice")
    tries.check_attempt("::ffff:192.0.2.2", "alice")


def test_passwords_that_every_user_of_the_machine_can_read_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (tmp_path / name).write_text("alice=secret-1\n")
        (tmp_path / name).chmod(mode)
        DashboardUsers(tmp_path / name)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert warned == f"every user of this machine can read the passwords in {tmp_path / 'open'}: chmod 600 it"


def test_strangers_do_not_lock_a_user_out_of_known_addresses(users: Path, clock: Clock) -> None:
    logged_in = DashboardLogins(DashboardUsers(users, clock), clock)
    logged_in.log_in("192.0.2.200", "alice", "secret-1")
    for number in range(logins.USER_TRIES):
        with pytest.raises(NotAuthorizedError):
            logged_in.log_in(f"192.0.2.{number}", "alice", "x")
    with pytest.raises(logins.BusyError):
        logged_in.log_in("198.51.100.1", "alice", "secret-1")
    logged_in.log_in("192.0.2.200", "alice", "secret-1")
    logged_in.log_in("127.0.0.1", "alice", "secret-1")
    for _ in range(logins.ADDRESS_TRIES):
        with pytest.raises(NotAuthorizedError):
            logged_in.log_in("192.0.2.200", "alice", "x")
    with pytest.raises(logins.BusyError):
        logged_in.log_in("192.0.2.200", "alice", "secret-1")


def test_known_addresses_are_bounded(users: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "KNOWN_ADDRESSES_MAX", 2)
    logged_in = DashboardLogins(DashboardUsers(users, clock), clock)
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"):
        logged_in.log_in(address, "alice", "secret-1")
    for number in range(10, 10 + logins.USER_TRIES):
        with pytest.raises(NotAuthorizedError):
            logged_in.log_in(f"192.0.2.{number}", "alice", "x")
    for address in ("192.0.2.1", "192.0.2.3"):
        logged_in.log_in(address, "alice", "secret-1")
    with pytest.raises(logins.BusyError):
        logged_in.log_in("192.0.2.2", "alice", "secret-1")


def test_failures_that_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(logins, "TRACKED_MAX", 10)
    tries = logins.FailedLoginLimits(clock)
    for number in range(1000):
        tries.count_failure(f"10.0.{number // 250}.{number % 250}", f"u{number}")
    assert len(tries._free_at_s) == 10


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[]", 400), (b'{"user": 1, "password": "x"}', 400), (b'{"user": "alice"}', 400),
     (b'{"user":"\xff","password":"x"}', 400), (b'{"user":"\\ud800","password":"x"}', 400), (b"1" * 70_000, 400)],
)  # fmt: skip
def test_body_that_is_no_login_is_refused(closed: Dashboard, body: bytes, status: int) -> None:
    assert closed.post("login", body)[0] == status


def test_login_of_another_page_is_refused(closed: Dashboard) -> None:
    body = {"user": "alice", "password": "secret-1"}
    for headers in (
        {"Origin": "http://[x"}, {"Origin": "http://["}, {"Origin": "http://evil.example"}, {"Origin": "null"},
        {"Origin": ""}, {"sec_fetch_site": "cross-site"}, {"Origin": "http://127.0.0.1:1"},
    ):  # fmt: skip
        assert closed.post("login", body, **headers)[0] == 403
    assert closed.post("login", body, **{"Content-Type": "text/plain"})[0] == 415
    assert closed.post("login", body, host="evil.example", Origin="http://evil.example")[0] == 421
    assert closed.send("/api/login")[0] == 405 and closed.send("/api/overview", "POST")[0] == 405
    for host, origin in (
        ("192.0.2.1:80", "http://192.0.2.1:80"), ("192.0.2.1:443", "https://192.0.2.1"), ("[::1]", "http://[::1]:80"),
        ("LOCALHOST", "http://localhost"),
    ):  # fmt: skip
        assert closed.post("login", body, host=host, Origin=origin)[0] == 200
    for host, origin in (("192.0.2.1:443", "http://192.0.2.1"), ("192.0.2.1:x", "http://192.0.2.1:x")):
        assert closed.post("login", body, host=host, Origin=origin)[0] in (403, 421)


def test_dashboard_without_users_has_no_login(serve: Serve, our_broker: Broker) -> None:
    dashboard = serve(our_broker.bootstrap_servers)
    assert dashboard.get("session") == {"login": False, "user": None, "changes": False}
    assert dashboard.send("/api/login", "POST")[0] == 405
    assert dashboard.send("/api/overview", host="192.0.2.1")[0] == 421


def test_name_of_the_host_option_is_one_of_the_dashboard(serve: Serve, our_broker: Broker) -> None:
    dashboard = serve(our_broker.bootstrap_servers, access=DashboardAccess(hosts=frozenset({"board.example"})))
    assert dashboard.send("/api/overview", host="Board.Example:8480")[0] == 200
    assert dashboard.send("/api/overview", host="other.example")[0] == 421


# -- Files of users


@pytest.mark.parametrize(
    ("text", "error"), [("", "has no user"), ("alice=\n", "user 1 of the file"), ("alice", "line 1")]
)
def test_file_without_users_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(InvalidInputError, match=error):
        DashboardUsers(tmp_path / "users")
    with pytest.raises(InvalidInputError, match="missing"):
        DashboardUsers(tmp_path / "missing")


@pytest.mark.parametrize(
    "text", ["alice s3cret-word\n", "alice=a\nbob:s3cret-word=\n", "alice=\\ud800s3cret-word\n", "\\udc00=s3cret-word"]
)
def test_faulty_line_is_named_by_its_number_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        DashboardUsers(tmp_path / "users")
    assert "s3cret" not in str(caught.value) and str(tmp_path / "users") in str(caught.value)


def test_faulty_line_keeps_the_users_that_were_read_last(
    closed: Dashboard, users: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("alice=secret-1\nbob s3cret-word\n", "alice=a\\ud800b\n"):
        users.write_text(text)
        clock.now_s += logins.FILE_CHECK_S
        log_in(closed, "bob", "secret-2")
    assert "line 2" in caplog.text and "line 1" in caplog.text and "s3cret" not in caplog.text


def test_file_that_becomes_empty_has_no_users(
    closed: Dashboard, users: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cookie = log_in(closed)
    users.write_text("# nobody\n")
    clock.now_s += logins.FILE_CHECK_S
    assert status_of(closed, "overview", cookie) == 401
    assert closed.post("login", {"user": "alice", "password": "secret-1"})[0] == 401
    assert "has no user any more" in caplog.text
    users.write_text("alice=secret-1\n")
    clock.now_s += logins.FILE_CHECK_S
    log_in(closed)


# -- Other machines, and TLS


@pytest.mark.parametrize(
    "name",
    [
        "board.example:8480",
        "https://board.example",
        "b\u00fccher.example",
        "",
        "a b",
        "-a.example",
        "a..b",
        "::1",
        "a\n",
    ],
)
def test_host_that_no_request_can_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="host name"):
        AccessOptions(host=("board.example", name)).dashboard_access("127.0.0.1")
    names = AccessOptions(host=("Board.example", "xn--bcher-kva")).dashboard_access("h").hosts
    assert names == {"board.example", "xn--bcher-kva", "h"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    more_certificates(folder)
    return folder


@pytest.mark.parametrize(
    ("host", "given"),
    [
        ("0.0.0.0", ()), ("[::]", ()), ("192.0.2.7", ()), ("board.example", ()), ("0.0.0.0", ("users",)),
        ("0.0.0.0", ("tls",)), ("0.0.0.0", ("insecure",)), ("0.0.0.0", ("tls", "insecure")),
    ],
)  # fmt: skip
def test_address_beyond_loopback_needs_users_and_tls(
    users: Path, certificates: Path, host: str, given: tuple[str, ...]
) -> None:
    options = {"users": ["--users", str(users)], "tls": ["--tls", str(certificates / "broker.pem")]}
    options["insecure"] = ["--insecure"]
    words = [word for name in given for word in options[name]]
    command = [*KOHORT, "dashboard", "--listen", f"{host}:0", "--bootstrap-server", NOBODY, *words]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = " ".join(asked.stderr.split())
    assert asked.returncode == 2 and "can be reached from other machines" in said
    assert ("passwords would cross the network unencrypted" if "users" in given else "it has no login") in said
    assert "--users FILE with --tls FILE" in said and "ssh -L" in said


def over_tls(port: int, folder: Path, path: str, body: object = None, cookie: str = "") -> tuple[int, Any, Any]:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    headers = {"Origin": f"https://localhost:{port}", "Content-Type": "application/json", "Cookie": cookie}
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("with_authorities", [False, True])
def test_command_serves_users_over_tls(
    start: Start, users: Path, certificates: Path, our_broker: Broker, name: str, with_authorities: bool
) -> None:
    behind(our_broker.bootstrap_servers, name, name)
    options = ["--client-ca", str(certificates / "ca.pem")] if with_authorities else []
    process = start(
        "dashboard", "--listen", "0.0.0.0:0", "--bootstrap-server", our_broker.bootstrap_servers, "--users", str(users),
        "--tls", str(certificates / "broker.pem"), *options,
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().split()[1]
    assert url.startswith("https://0.0.0.0:")
    port = int(url.rstrip("/").rpartition(":")[2])
    assert over_tls(port, certificates, "/")[0] == 200
    assert over_tls(port, certificates, "/api/overview")[0] == 401
    status, headers, _ = over_tls(port, certificates, "/api/login", {"user": "alice", "password": "secret-1"})
    cookie = headers["set-cookie"]
    assert status == 200 and cookie.startswith(f"__Host-kohort-session-{port}=") and "; Secure" in cookie
    cookie = cookie.partition(";")[0]
    until(lambda: name.encode() in over_tls(port, certificates, "/api/overview", cookie=cookie)[2], "it is read", 60)
    assert is_served(f"localhost:{port}", trusting(certificates, None), "/") != with_authorities
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_new_certificate_counts_for_new_connections(
    serve: Serve, users: Path, certificates: Path, tmp_path: Path
) -> None:
    identity = tmp_path / "own.pem"
    shutil.copy(certificates / "expired.pem", identity)
    access = DashboardAccess(DashboardLogins(DashboardUsers(users)), ServerCertificates("dashboard", identity))
    port = int(serve(NOBODY, access=access).server.address.rpartition(":")[2])
    with pytest.raises(ssl.SSLCertVerificationError):
        over_tls(port, certificates, "/")
    shutil.copy(certificates / "broker.pem", tmp_path / "new.pem")
    os.replace(tmp_path / "new.pem", identity)

    def is_trusted() -> bool:
        try:
            return over_tls(port, certificates, "/")[0] == 200
        except ssl.SSLCertVerificationError:
            return False

    until(is_trusted, "the new certificate is in use")


def test_connections_without_a_handshake_keep_nobody_out(
    serve: Serve, users: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kohort.dashboard.server.WAIT_S", 1.0)
    access = DashboardAccess(
        DashboardLogins(DashboardUsers(users)), ServerCertificates("dashboard", certificates / "broker.pem")
    )
    port = int(serve(NOBODY, access=access).server.address.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(300)]
    assert over_tls(port, certificates, "/")[0] == 200
    ended: list[bytes] = []
    threads = [threading.Thread(target=lambda sock=sock: ended.append(sock.recv(1))) for sock in silent[:5]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended == [b""] * 5, "they are closed"
    for sock in silent:
        sock.close()


def test_handshakes_are_counted_and_the_oldest_ends(
    serve: Serve, users: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kohort.dashboard.server.CONNECTIONS_MAX", 5)
    access = DashboardAccess(
        DashboardLogins(DashboardUsers(users)), ServerCertificates("dashboard", certificates / "broker.pem")
    )
    dashboard = serve(NOBODY, access=access)
    port = int(dashboard.server.address.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(20)]
    assert over_tls(port, certificates, "/")[0] == 200
    assert dashboard.server.connections <= 5
    for sock in silent[:15]:
        sock.settimeout(5)  # less than the limit of a handshake
        assert sock.recv(1) == b"", "it made room"
    for sock in silent:
        sock.close()
    until(lambda: dashboard.server.connections == 0, "their places are free")


def test_dashboard_without_descriptors_says_so_once_and_serves_again(
    start: Start, users: Path, certificates: Path
) -> None:
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("the limits of another process can't be set here")
    process = start(
        "dashboard", "--listen", "127.0.0.1:0", "--bootstrap-server", NOBODY, "--users", str(users),
        "--tls", str(certificates / "broker.pem"),
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[1].rstrip("/").rpartition(":")[2])
    assert over_tls(port, certificates, "/")[0] == 200
    used = len(os.listdir(f"/proc/{process.pid}/fd"))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(60)]
    assert over_tls(port, certificates, "/")[0] == 200
    for sock in silent:
        sock.close()
    assert over_tls(port, certificates, "/")[0] == 200
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("can't accept a connection") == 1 and "Traceback" not in errors
