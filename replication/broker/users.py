"""Users: what this broker knows of those that log in: SCRAM credentials in the tree, passwords in its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from replication.security import sasl
from replication.security.scram import Credential, ScramError, decoy, parse_credential
from replication.security.tokens import Bearer, TokenError

logger = logging.getLogger(__name__)


class Users:
    """The credentials follow the tree: a password that is changed there counts for the next login."""

    def __init__(self) -> None:
        self.secret = b""  # of the cluster
        self._credentials: dict[str, Mapping[str, Credential]] = {}  # user -> mechanism

    def known(self, passwords: Mapping[str, str], bearer: Callable[[str], Bearer] | None = None) -> ListenerUsers:
        """Return what a listener knows; `passwords`: of its users of PLAIN, `bearer`: whose a token is."""
        return ListenerUsers(self, passwords, bearer)

    def credentials(self, username: str) -> Mapping[str, Credential]:
        """Return the credentials of a user, by mechanism."""
        return self._credentials.get(username, {})

    def names(self) -> Collection[str]:
        return self._credentials.keys()

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        for name in self._credentials.keys() - set(names):
            del self._credentials[name]

    def change(self, name: str, settings: Mapping[str, str]) -> None:
        """Take a user's settings. One that cannot be understood is none, and logged without its value."""
        found: dict[str, Credential] = {}
        for mechanism in sasl.SCRAM:
            if mechanism in settings:
                try:
                    found[mechanism] = parse_credential(mechanism, settings[mechanism])
                except ScramError as error:
                    logger.error("user=%r has no credential of %s: %s", name, mechanism, error)
        if found:
            self._credentials[name] = found
        else:
            self._credentials.pop(name, None)


class ListenerUsers:
    """See `security.sasl.Known`."""

    def __init__(self, users: Users, passwords: Mapping[str, str], bearer: Callable[[str], Bearer] | None) -> None:
        self._users = users
        self._bearer = bearer
        self._passwords = {name: password.encode() for name, password in passwords.items()}

    @property
    def secret(self) -> bytes:
        return self._users.secret

    def password(self, username: str) -> bytes | None:
        return self._passwords.get(username)

    def credential(self, mechanism: str, username: str) -> Credential:
        nobodys = decoy(mechanism, self._users.secret, username)  # made in any case: the time tells nothing
        return self._users.credentials(username).get(mechanism, nobodys)

    def bearer(self, token: str) -> Bearer:
        if self._bearer is None:
            raise TokenError("no token is known here")
        return self._bearer(token)
