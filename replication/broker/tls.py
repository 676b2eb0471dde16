"""TLS of a listener: its contexts out of the settings, and another one when a file has changed.

New certificates count for the connections that come after them. Files that cannot be used leave the former context in
use, with one line of the log.
"""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from pathlib import Path

from logstore.env import machine
from logstore.errors import InvalidConfigError
from replication.config.listener_settings import ListenerSettings

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the files
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# Python chooses among the suites of TLS 1.2 only.
SUITES_OF_TLS_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE = 64


class Contexts:
    """The context of one listener. Raises: InvalidConfigError, when it is made."""

    def __init__(self, name: str, settings: ListenerSettings, now_s: float = 0.0) -> None:
        self._name = name
        self._settings = settings
        self._looked_s = now_s
        self._seen = self._looks()
        self._context = server_context(settings)

    def at(self, now_s: float) -> ssl.SSLContext:
        """Return the context for a connection that comes now."""
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if (seen := self._looks()) != self._seen:
                self._seen = seen
                self._load()
        return self._context

    def _load(self) -> None:
        try:
            self._context = server_context(self._settings)
        except InvalidConfigError as error:
            logger.error("listener=%s keeps its former certificate: %s", self._name, error)
        else:
            logger.info("listener=%s has another certificate", self._name)

    def _looks(self) -> tuple[object, ...]:
        return tuple(map(_look, (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location)))


def _look(file: str) -> object:
    try:
        found = Path(file).stat() if file else None
    except OSError as error:
        return error.errno
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def server_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raises: InvalidConfigError: what is missing or wrong, without a secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions(context, settings)
    _load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        load_authorities(context, settings)
    return context


def client_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the context by which a broker connects to a listener of another one. Raises: InvalidConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, settings)
    _load_key(context, settings)
    context.check_hostname = bool(settings.ssl_endpoint_identification_algorithm)
    load_authorities(context, settings)
    return context


def load_authorities(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    """Believe the authorities of the truststore. Raises: InvalidConfigError."""
    file, inline = settings.ssl_truststore_location, settings.ssl_truststore_certificates
    key = "ssl.truststore.certificates" if inline else "ssl.truststore.location"
    if not file and not inline:
        raise InvalidConfigError(f"{key}: name the authorities whose certificates are to be believed", key=key)
    if file and inline:
        raise _twice("ssl.truststore.location", key)
    try:
        context.load_verify_locations(cafile=file or None, cadata=pem(inline) if inline else None)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(
            f"{key}{f'={file}' if file else ''}: {_why(error, 'no certificate')}", key=key
        ) from None


def _load_key(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    file, chain, private = (
        settings.ssl_keystore_location,
        settings.ssl_keystore_certificate_chain,
        settings.ssl_keystore_key,
    )
    key = "ssl.keystore.certificate.chain" if chain or private else "ssl.keystore.location"
    if file and (chain or private):
        raise _twice("ssl.keystore.location", key)
    if not file and not (chain and private):
        raise InvalidConfigError(
            f"{key}: TLS needs a certificate and its key: ssl.keystore.location, or ssl.keystore.certificate.chain and "
            "ssl.keystore.key",
            key=key,
        )
    try:
        with contextlib.ExitStack() as stack:
            where = file or stack.enter_context(machine.secret_file(pem(private) + pem(chain)))
            # Without a function OpenSSL would ask the terminal for the password.
            context.load_cert_chain(where, password=lambda: settings.ssl_key_password)
    except (OSError, ValueError) as error:
        why = "certificate and key cannot be read or do not fit; an encrypted key needs ssl.key.password"
        raise InvalidConfigError(f"{key}{f'={file}' if file else ''}: {_why(error, why)}", key=key) from None


def _set_versions(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    versions = [_VERSIONS[name] for name in settings.ssl_enabled_protocols]
    suites = settings.ssl_cipher_suites
    if not versions:
        raise InvalidConfigError("ssl.enabled.protocols: name TLSv1.2, TLSv1.3 or both", key="ssl.enabled.protocols")
    if suites:
        newer = suites & SUITES_OF_TLS_1_3
        if newer and newer != SUITES_OF_TLS_1_3:
            raise _suites(f"of TLS 1.3 all or none: {', '.join(sorted(SUITES_OF_TLS_1_3))}")
        usable = {_VERSIONS["TLSv1.3"]} if newer else set()
        usable |= {_VERSIONS["TLSv1.2"]} if suites - newer else set()
        versions = [version for version in versions if version in usable]
        if not versions:
            raise _suites("none of them is of a version in ssl.enabled.protocols")
        older = [_openssl_name(name) for name in sorted(suites - newer)]
        for name in older:
            try:
                context.set_ciphers(name)
            except ssl.SSLError:
                raise _suites(f"{name} is not known to this OpenSSL") from None
        if older:
            context.set_ciphers(":".join(older))
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2, such as ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, mark, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not mark:
        return suite
    cipher = re.sub(r"^AES_(\d+)_", r"AES\1-", cipher).replace("CBC_", "").replace("POLY1305_SHA256", "POLY1305")
    return f"{exchange}-{cipher}".replace("_", "-").removeprefix("RSA-")


def pem(text: str) -> str:
    """Return PEM with its lines, which a value in a file of settings may lack. Raises: ValueError: there is none."""
    parts = _PEM.findall(text.replace("\\n", "\n"))
    if not parts:
        raise ValueError("not PEM")
    made = []
    for kind, body in parts:
        head, mark, rest = body.rpartition("\n\n") if "Proc-Type" in body else ("", "", body)
        data = "".join(rest.split())
        lines = [data[at : at + _LINE] for at in range(0, len(data), _LINE)]
        made.append("\n".join((f"-----BEGIN {kind}-----{head}{mark}".rstrip(" "), *lines, f"-----END {kind}-----", "")))
    return "".join(made)


def _why(error: Exception, of_content: str) -> str:
    return of_content if isinstance(error, ssl.SSLError | ValueError) else str(getattr(error, "strerror", of_content))


def _suites(why: str) -> InvalidConfigError:
    return InvalidConfigError(f"ssl.cipher.suites: {why}", key="ssl.cipher.suites")


def _twice(one: str, other: str) -> InvalidConfigError:
    return InvalidConfigError(f"{one} and {other} are both given: leave one of them out", key=one)
