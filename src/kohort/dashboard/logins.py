"""Logins of the dashboard: users of a file, a limit on tries, and sessions."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kohort.dashboard.cluster_lookups import BusyError
from kohort.errors import InvalidInputError, NotAuthorizedError
from kohort.io.log_throttle import FailureThrottle
from kohort.io.platforms import is_readable_by_all
from kohort.settings.config import is_loopback, read_users

log = logging.getLogger("kohort.dashboard")

FILE_CHECK_S = 1.0
"""How often the users' file is looked at."""
ADDRESS_TRIES, USER_TRIES = 10, 30
"""The most failed logins of one address, and of one user from everywhere, before each further one has to wait."""
TRY_INTERVAL_S = 10.0
"""How soon one more failed login is allowed then."""
TRACKED_MAX = 10_000
"""The most addresses and users whose failed logins are counted; then the oldest is forgotten."""
SESSION_S = 12 * 3600.0
"""How long a login lasts."""
KNOWN_ADDRESSES_MAX = 8
"""The most addresses of a user whose logins do not depend on failures elsewhere: those that logged in last."""
USER_SESSIONS_MAX = 20
"""The most sessions of a user; a further login ends the oldest."""
NAME_MAX = 256
"""The longest name and password, in characters."""
REFUSED = "wrong user or password"
_LOOPBACK = "127.0.0.1"


class DashboardUsers:
    """The users of a file, NAME=PASSWORD in each line, as a broker's `--sasl` takes. A changed file is read again.

    Args:
        path: The file.

    Raises:
        InvalidInputError: It can't be read, has no user, or a user has no password. Later such a file changes nothing,
            except that a file without users means that there are none.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = path, now_s
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._failures = FailureThrottle(lambda: time.monotonic() * 1000)
        self._read_as: tuple[int, ...] = ()
        self._proofs: dict[str, bytes] = {}
        self._checked_s = now_s()
        self._load_users()

    def login(self, user: str, password: str) -> bytes | None:
        """Check a user's password. Return its keyed hash (`password_hash`); None: the user or the password is wrong.

        An unknown user takes as long as a known one.
        """
        known = self.password_hash(user)
        given = hmac.digest(self._key, password.encode(), "sha256")
        fits = hmac.compare_digest(given, secrets.token_bytes(len(given)) if known is None else known)
        return known if fits else None

    def password_hash(self, user: str) -> bytes | None:
        """Return a keyed hash of a user's present password; None: there is no such user."""
        with self._lock:
            if self._now_s() - self._checked_s >= FILE_CHECK_S:
                self._checked_s = self._now_s()
                try:
                    self._load_users()
                except InvalidInputError as error:
                    if self._failures.should_log(error.message):
                        log.warning(
                            "users file can't be read again: %s; the users that were read before stay valid",
                            error.message,
                        )
            return self._proofs.get(user)

    def _load_users(self) -> None:
        try:
            found = self._path.stat()
        except OSError as error:
            raise InvalidInputError(f"can't read the users of {self._path}: {error}") from None
        state = (found.st_mtime_ns, found.st_size, found.st_ino)
        if state == self._read_as:
            return
        users = read_users(self._path)
        if is_readable_by_all(self._path):
            log.warning("every user of this machine can read the passwords in %s: chmod 600 it", self._path)
        for number, (name, password) in enumerate(users.items(), 1):
            if not password or len(password) > NAME_MAX or len(name) > NAME_MAX:  # a name may be a password misplaced
                raise InvalidInputError(
                    f"{self._path}: user {number} of the file: give a name and a password of 1 to {NAME_MAX} characters"
                )
        if not users and not self._read_as:
            raise InvalidInputError(f"{self._path} has no user: write NAME=PASSWORD in each line")
        if not users:
            log.warning("users file %s has no user any more: nobody can log in to the dashboard", self._path)
        self._proofs = {name: hmac.digest(self._key, word.encode(), "sha256") for name, word in users.items()}
        self._read_as = state


class FailedLoginLimits:
    """Limits on failed logins for each address and each user: a number at once, then one every `TRY_INTERVAL_S`."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._free_at_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._known: dict[str, OrderedDict[str, None]] = {}

    def check_attempt(self, address: str, user: str) -> None:
        """Refuse a login attempt if too many logins from this address, or of this user, have failed.

        The user's limit does not apply on loopback and to addresses from which the user has logged in: strangers must
        not lock a user out.

        Raises:
            BusyError: Too many have failed.
        """
        now_s = self._now_s()
        by_address, by_user = _keys(address, user)
        network = by_address[0][1]
        is_known = is_loopback(network) or network in self._known.get(user, ())
        for key, tries in (by_address,) if is_known else (by_address, by_user):
            if self._free_at_s.get(key, 0.0) > now_s + (tries - 1) * TRY_INTERVAL_S:
                raise BusyError(f"too many logins have failed: try again in {TRY_INTERVAL_S:.0f} s")

    def remember_address(self, address: str, user: str) -> None:
        """Remember the address of a user's login: the user's limit on failed logins does not apply there."""
        known = self._known.setdefault(user, OrderedDict())
        network = _network(address)
        known[network] = None
        known.move_to_end(network)
        while len(known) > KNOWN_ADDRESSES_MAX:
            known.popitem(last=False)
        while len(self._known) > TRACKED_MAX:
            del self._known[next(iter(self._known))]

    def count_failure(self, address: str, user: str) -> None:
        """Count a failed login of an address and a user."""
        now_s = self._now_s()
        for key, _ in _keys(address, user):
            self._free_at_s[key] = max(now_s, self._free_at_s.get(key, 0.0)) + TRY_INTERVAL_S
            self._free_at_s.move_to_end(key)
        while len(self._free_at_s) > TRACKED_MAX:
            self._free_at_s.popitem(last=False)


def _network(address: str) -> str:
    """Return the address by which failed logins are counted: the /64 network of IPv6, one address for all of loopback.

    An IPv6 socket shows clients of IPv4 as `::ffff:192.0.2.1`, which count as IPv4. Each user of the machine has the 16
    million addresses of 127.0.0.0/8.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None and not found.is_loopback:
            return str(ipaddress.ip_network((int(found), 64), strict=False))
        found = found.ipv4_mapped or found
    return _LOOPBACK if found.is_loopback else str(found)


def _keys(address: str, user: str) -> tuple[tuple[tuple[str, str], int], tuple[tuple[str, str], int]]:
    """Return the counter keys of an address and of a user, each with the number of failed logins allowed at once."""
    address = _network(address)
    name = hashlib.sha256(user.encode()).hexdigest()
    return (("address", address), ADDRESS_TRIES), (("user", name), USER_TRIES)


@dataclass(frozen=True, slots=True)
class LoginSession:
    """The session of a user who has logged in.

    Attributes:
        user: The user's name.
        proof: The keyed hash of the password with which the user logged in.
        ends_s: The time at which the session ends, in s on the clock of `DashboardLogins`.
    """

    user: str
    proof: bytes
    ends_s: float


class DashboardLogins:
    """The dashboard's logins and login sessions. All calls must come from one thread.

    Args:
        users: The users and their passwords.
        now_s: The clock, in s.
    """

    def __init__(self, users: DashboardUsers, now_s: Callable[[], float] = time.monotonic) -> None:
        self._users, self._now_s = users, now_s
        self._tries = FailedLoginLimits(now_s)
        self._sessions: OrderedDict[bytes, LoginSession] = OrderedDict()

    def log_in(self, address: str, user: str, password: str) -> str:
        """Log a user in, and return the secret of the new session for its cookie.

        Raises:
            NotAuthorizedError: The user or the password is wrong.
            BusyError: Too many logins have failed.
        """
        shown = user if user.isprintable() and len(user) <= NAME_MAX else "?"
        self._tries.check_attempt(address, user[:NAME_MAX])
        proof = self._users.login(user, password) if max(len(user), len(password)) <= NAME_MAX else None
        if proof is None:
            self._tries.count_failure(address, user[:NAME_MAX])
            log.warning("[user %s] login from %s refused: %s", shown, address, REFUSED)
            raise NotAuthorizedError(REFUSED)
        self._tries.remember_address(address, user)
        own = [key for key, session in self._sessions.items() if session.user == user]
        for key in own[: max(0, len(own) - USER_SESSIONS_MAX + 1)]:
            del self._sessions[key]
        secret = secrets.token_urlsafe(32)
        self._sessions[_kept(secret)] = LoginSession(user, proof, self._now_s() + SESSION_S)
        log.info("[user %s] logged in from %s", shown, address)
        return secret

    def find_session(self, secret: str) -> LoginSession | None:
        """Return the session with this secret; None: unknown, over, or its user is gone or has another password."""
        found = self._sessions.get(_kept(secret))
        if found is None:
            return None
        proof = self._users.password_hash(found.user)
        if found.ends_s > self._now_s() and proof is not None and hmac.compare_digest(proof, found.proof):
            return found
        self.log_out(secret)
        return None

    def log_out(self, secret: str) -> None:
        """End the session of this secret: log its user out."""
        found = self._sessions.pop(_kept(secret), None)
        if found is not None:
            log.info("[user %s] logged out", found.user)


def _kept(secret: str) -> bytes:
    """Return the hash by which a session is stored, so that the duration of a search reveals nothing of the secret."""
    return hashlib.sha256(secret.encode()).digest()
