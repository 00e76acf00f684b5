"""SCRAM credentials, stored in a file of the data folder as Kafka does: never the password. Source: KIP-554."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

from kohort.broker.config.json_file import read_json, write_json
from kohort.broker.security.mechanisms import StoredCredential
from kohort.errors import InvalidInputError
from kohort.io.platforms import is_readable_by_all
from kohort.log.checkpoints import replace_file
from kohort.settings.config import read_users

log = logging.getLogger("kohort.broker")

FILE, SECRET_FILE = "users.json", "users.secret"
SECRET_BYTES = 32
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
SALT_BYTES = 24
SALT_BYTES_MAX = 1024
"""The longest salt of a credential. Each login of anyone makes up a salt as long as that of some user."""


class Users:
    """The store of users' SCRAM credentials, by mechanism."""

    def __init__(self, folder: Path) -> None:
        self._secret_path = folder / SECRET_FILE
        self._secret: bytes | None = None
        self._secret_lock = threading.Lock()
        self._path = folder / FILE
        self._by_name: dict[str, dict[str, dict[str, str | int]]] = read_json(self._path)
        self._models = self._salt_models()

    def _salt_models(self) -> dict[str, list[tuple[int, int]]]:
        """Return salt lengths and iterations of users' credentials, by mechanism, for made-up credentials."""
        return {
            mechanism: sorted(
                (len(str(found[mechanism]["salt"])) // 2, int(found[mechanism]["iterations"]))
                for found in self._by_name.values()
                if mechanism in found
            )
            for mechanism in MECHANISMS.values()
        }

    def _salt_secret(self) -> bytes:
        """Return the secret from which made-up salts are derived; it survives restarts, as real salts do."""
        with self._secret_lock:
            if self._secret is None:
                self._secret = self._stored_secret()
            return self._secret

    def _stored_secret(self) -> bytes:
        try:
            secret = self._secret_path.read_bytes()
        except OSError:
            secret = b""
        if len(secret) == SECRET_BYTES:
            return secret
        secret = secrets.token_bytes(SECRET_BYTES)
        try:
            replace_file(self._secret_path, secret, mode=0o600)
        except OSError as error:
            log.warning(
                "%s could not be written: it keeps the secret for SCRAM salts of unknown users, which change at the "
                "next restart and so show which users exist: %s",
                self._secret_path,
                error,
            )
        return secret

    def user_names(self) -> list[str]:
        """Return all users with a credential."""
        return sorted(self._by_name)

    def iterations_by_mechanism(self, user: str) -> dict[int, int]:
        """Return the SCRAM mechanisms of a user's credentials, each with its number of iterations."""
        found = self._by_name.get(user, {})
        return {number: int(found[name]["iterations"]) for number, name in MECHANISMS.items() if name in found}

    def credential(self, user: str, mechanism: str) -> StoredCredential | None:
        """Return a user's credential for a SCRAM mechanism, by Kafka's name; None: there is none."""
        found = self._by_name.get(user, {}).get(mechanism)
        if found is None:
            return None
        salt, stored_key, server_key = (bytes.fromhex(str(found[key])) for key in ("salt", "stored_key", "server_key"))
        return StoredCredential(salt, int(found["iterations"]), stored_key, server_key)

    def decoy_credential(self, user: str, mechanism: str) -> StoredCredential:
        """Return a credential that no password fits, for a user that may not exist.

        Its salt is always the same for a name. The salt's length and the iterations are those of an existing user, so
        that clients can't see the difference.
        """
        name = "sha256" if mechanism == MECHANISMS[1] else "sha512"
        size = hashlib.new(name).digest_size
        made = hmac.digest(self._salt_secret(), f"{mechanism} {user}".encode(), "sha512")
        models = self._models[mechanism]
        length, iterations = models[made[0] % len(models)] if models else (SALT_BYTES, ITERATIONS_MIN)
        length = min(length, SALT_BYTES_MAX)
        salt = b"".join(hmac.digest(made, bytes([part]), "sha512") for part in range(1 + length // 64))[:length]
        return StoredCredential(salt, iterations, secrets.token_bytes(size), secrets.token_bytes(size))

    def add_users_from_file(self, location: str) -> None:
        """Add the users of a file, NAME=PASSWORD in each line, or change their passwords.

        Raises:
            InvalidInputError: the file can't be read, or a line is no user.
        """
        changes = []
        users = read_users(location)
        if is_readable_by_all(location):
            log.warning("every user of this machine can read the passwords in %s: chmod 600 it", location)
        for position, (name, password) in enumerate(users.items(), 1):
            if not password:  # the name may be a password that is misplaced
                raise InvalidInputError(f"{location}: user {position} of the file has no password")
            for number, mechanism in MECHANISMS.items():
                digest = "sha256" if number == 1 else "sha512"
                known = self.credential(name, mechanism)
                if known is not None:
                    salted = hashlib.pbkdf2_hmac(digest, password.encode(), known.salt, known.iterations)
                    if hmac.compare_digest(hmac.digest(salted, b"Server Key", digest), known.server_key):
                        continue
                salt = secrets.token_bytes(SALT_BYTES)
                salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, ITERATIONS_MIN)
                changes.append((name, number, ITERATIONS_MIN, salt, salted))
        if changes:
            self.change_credentials((), changes)

    def change_credentials(
        self, deletions: Iterable[tuple[str, int]], upsertions: Iterable[tuple[str, int, int, bytes, bytes]]
    ) -> None:
        """Delete (user, mechanism) and set (user, mechanism, iterations, salt, salted password).

        The change is durable when this returns.
        """
        after = {name: dict(found) for name, found in self._by_name.items()}
        for user, mechanism in deletions:
            after[user].pop(MECHANISMS[mechanism])
        for user, mechanism, iterations, salt, salted in upsertions:
            digest = hashlib.sha256 if mechanism == 1 else hashlib.sha512
            client_key = hmac.digest(salted, b"Client Key", digest)
            after.setdefault(user, {})[MECHANISMS[mechanism]] = {
                "iterations": iterations,
                "salt": salt.hex(),
                "stored_key": digest(client_key).hexdigest(),
                "server_key": hmac.digest(salted, b"Server Key", digest).hex(),
            }
        after = {name: found for name, found in after.items() if found}
        write_json(self._path, after)
        self._by_name = after
        self._models = self._salt_models()
