"""Security out of settings by Kafka's names and librdkafka's. No file is read here, and no error shows a password."""

from __future__ import annotations

from collections.abc import Mapping

from logstore.errors import InvalidConfigError, did_you_mean
from replication.network import jaas
from replication.network.jaas import MECHANISMS
from replication.network.security import PLAINTEXT, PROTOCOLS, Security

__all__ = ["PLAINTEXT", "SETTINGS", "Security", "hint_of", "security_of"]

_PEM = "PEM"

# Every setting that is taken; docs/client.md has them with their meanings, and a test compares.
SETTINGS = frozenset(
    {
        "security.protocol",
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_NO_PASSWORD = "a PEM file has none: remove it; that of the key in it is ssl.key.password"
_HINTS = {
    "sasl.mechanisms": "here it is sasl.mechanism",
    "ssl.keystore.password": _NO_PASSWORD,
    "ssl.truststore.password": _NO_PASSWORD,
    "enable.ssl.certificate.verification": "certificates are always checked: name their authority by ssl.ca.location",
}
_REMEDIES = {  # of stores that are no PEM files; the store is the first word of the setting
    "truststore": "make a PEM file of it: keytool -exportcert -rfc -alias CA -keystore STORE -file ca.pem",
    "keystore": "make a PEM file of it: keytool -importkeystore -srckeystore STORE -destkeystore s.p12 -deststoretype "
    "PKCS12, then openssl pkcs12 -in s.p12 -out client.pem",
}


def security_of(given: Mapping[str, str], prefix: str = "") -> Security:
    """Parse these settings; no settings are PLAINTEXT. `prefix` precedes their names in errors.

    Raises: InvalidConfigError: a setting is unknown, not supported, or has no effect beside the others.
    """
    try:
        return _security_of({name: value.strip() for name, value in given.items()})
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{prefix}{error}", option=error.option) from None  # type: ignore[attr-defined]


def hint_of(name: str) -> str:
    """The hint for a setting of this name that is not supported; "" if it is no setting of TLS or SASL."""
    if name in _HINTS:
        return _HINTS[name]
    if name.startswith(("ssl.", "sasl.", "security.")):
        return f"it is not known{did_you_mean(name, SETTINGS)}"
    return ""


def _security_of(given: Mapping[str, str]) -> Security:
    for name in sorted(given.keys() - SETTINGS):
        raise _wrong(name, hint_of(name) or f"it is not known{did_you_mean(name, SETTINGS)}")
    protocol = given.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise _wrong("security.protocol", f"one of {', '.join(PROTOCOLS)}")
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in sorted(given):
        if name.startswith("ssl.") and not has_tls:
            raise _wrong(name, f"it needs security.protocol=SSL or SASL_SSL, and that is {protocol}")
        if name.startswith("sasl.") and not has_sasl:
            raise _wrong(name, f"it needs security.protocol=SASL_SSL or SASL_PLAINTEXT, and that is {protocol}")
    mechanism = _mechanism(given) if has_sasl else ""
    username, password = _credentials(given, mechanism) if mechanism else ("", "")
    certificate_file = _file(given, "ssl.certificate.location", "ssl.keystore.location")
    for name in ("ssl.key.location", "ssl.key.password"):
        if given.get(name) and not certificate_file:
            raise _wrong(name, "it needs the certificate, in ssl.certificate.location or ssl.keystore.location")
    return Security(
        has_tls=has_tls,
        ca_file=_file(given, "ssl.ca.location", "ssl.truststore.location"),
        certificate_file=certificate_file,
        key_file=given.get("ssl.key.location", ""),
        key_password=given.get("ssl.key.password", ""),
        checks_host_name=_checks_host_name(given.get("ssl.endpoint.identification.algorithm", "https")),
        mechanism=mechanism,
        username=username,
        password=password,
    )


def _file(given: Mapping[str, str], pem: str, store: str) -> str:
    """The PEM file under either name."""
    kind = store.replace("location", "type")
    if given.get(kind, _PEM).upper() != _PEM or (store in given and kind not in given):
        remedy = _REMEDIES[store.split(".")[1]]
        raise _wrong(kind, f"only PEM is read, and Kafka's default is JKS: set it to PEM; {remedy}")
    _one_of(given, pem, store)
    return given.get(pem, "") or given.get(store, "")


def _one_of(given: Mapping[str, str], one: str, other: str) -> None:
    if one in given and other in given:
        raise _wrong(one, f"{other} says the same: leave one away")


def _checks_host_name(text: str) -> bool:
    if text.lower() not in ("https", "none", ""):
        raise _wrong("ssl.endpoint.identification.algorithm", "https, or empty: the host name is not checked")
    return text.lower() == "https"


def _mechanism(given: Mapping[str, str]) -> str:
    found = given.get("sasl.mechanism", "GSSAPI").upper()  # Kafka's default
    if found not in MECHANISMS:
        raise _wrong("sasl.mechanism", f"{found} is not spoken here: set it to one of {', '.join(MECHANISMS)}")
    return found


def _credentials(given: Mapping[str, str], mechanism: str) -> tuple[str, str]:
    """User and password, from either way to give them."""
    for name in ("sasl.username", "sasl.password"):
        _one_of(given, name, "sasl.jaas.config")
    if "sasl.jaas.config" in given:
        return _of_jaas(given["sasl.jaas.config"], mechanism)
    for name in ("sasl.username", "sasl.password"):
        if not given.get(name):
            raise _wrong(name, f"{mechanism} needs it, or sasl.jaas.config")
    return given["sasl.username"], given["sasl.password"]


def _of_jaas(text: str, mechanism: str) -> tuple[str, str]:
    """User and password of a login module's line, which is not shown."""
    try:
        pairs = jaas.parse(text, mechanism)
    except ValueError as error:
        raise _wrong("sasl.jaas.config", str(error)) from None
    if pairs.keys() != {"username", "password"}:
        raise _wrong("sasl.jaas.config", f"username and password are read, each once: {jaas.example(mechanism)}")
    return pairs["username"], pairs["password"]


def _wrong(name: str, rule: str) -> InvalidConfigError:
    return InvalidConfigError(f"{name}: {rule}", option=name)
