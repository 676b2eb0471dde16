"""The settings of connections, TLS and SASL: of all listeners of a broker, or of one as `listener.name.NAME.KEY`.

`NAME` is the listener's, in small letters. Values that are secrets are in no repr and in no answer of DescribeConfigs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from logstore.config import INT32_MAX, INT64_MAX, keyed, setting

PEM = "PEM"
CLIENT_AUTHS = ("none", "requested", "required")
TLS_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
# Brokers prove to each other that they read the same coordination store: see `security.proof`.
OF_BROKERS = "PYLOG-BROKER"


def _of_listener(default: Any, text: str, **bounds: Any) -> Any:
    return setting(default, text, is_of_listener=True, **bounds)


def _secret(text: str, **bounds: Any) -> Any:
    return _of_listener("", text, is_sensitive=True, **bounds)


def _jaas(mechanism: str, text: str) -> Any:
    return _secret(f"JAAS line of {mechanism}: {text}", key=f"{mechanism.lower()}.sasl.jaas.config")


@keyed
@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    # ------------------------------------------------------------ connections
    max_connections: int = _of_listener(
        INT32_MAX, "Connections of a listener, and of all; the broker closes further ones at once.", minimum=1,
        maximum=INT32_MAX, is_live=True,
    )  # fmt: skip
    max_connection_creation_rate: int = _of_listener(
        INT32_MAX, "Connections of a listener, and of all, that are served per second; others wait for their turn.",
        minimum=1, maximum=INT32_MAX, is_live=True,
    )  # fmt: skip
    # ------------------------------------------------------------ TLS
    ssl_keystore_type: str = _of_listener(PEM, "Form of the broker's certificate and key: PEM.", choices=(PEM,))
    ssl_keystore_location: str = _of_listener("", "PEM file with the broker's private key and its certificate chain.")
    ssl_keystore_certificate_chain: str = _secret(
        "The certificate chain itself in PEM, instead of a file; goes with ssl.keystore.key."
    )
    ssl_keystore_key: str = _secret("The private key itself in PEM, instead of a file.")
    ssl_key_password: str = _secret("Password of the private key.")
    ssl_truststore_type: str = _of_listener(PEM, "Form of the authorities' certificates: PEM.", choices=(PEM,))
    ssl_truststore_location: str = _of_listener(
        "", "PEM file with the authorities whose certificates of clients, and of other brokers, are believed."
    )
    ssl_truststore_certificates: str = _secret("These certificates themselves in PEM, instead of a file.")
    ssl_client_auth: str = _of_listener(
        "none",
        "Must clients show a certificate? requested: one that is shown is checked.",
        choices=CLIENT_AUTHS,
    )
    ssl_principal_mapping_rules: str = _of_listener(
        "DEFAULT",
        "How the name of a client's certificate becomes a user: RULE:pattern/replacement/[LU], … or DEFAULT, the whole "
        "name.",
    )
    ssl_enabled_protocols: frozenset[str] = _of_listener(
        frozenset(TLS_PROTOCOLS), "Versions of TLS.", members=frozenset(TLS_PROTOCOLS)
    )
    ssl_cipher_suites: frozenset[str] = _of_listener(
        frozenset(), "Cipher suites, by their IANA names; empty: those of OpenSSL.", each=re.compile(r"[A-Za-z0-9_-]+"),
        form="names of cipher suites, separated by commas",
    )  # fmt: skip
    ssl_endpoint_identification_algorithm: str = _of_listener(
        "https",
        "Check the host names of other brokers against their certificates: https, or empty: no.",
        choices=("https", ""),
    )
    # ------------------------------------------------------------ SASL
    sasl_enabled_mechanisms: frozenset[str] = _of_listener(
        frozenset(), f"Mechanisms by which clients log in: {', '.join(MECHANISMS)}.", members=frozenset(MECHANISMS)
    )
    plain_sasl_jaas_config: str = _jaas(
        PLAIN, "user_NAME=PASSWORD for each user; username and password of this broker."
    )
    scram_sha_256_sasl_jaas_config: str = _jaas(SCRAM_SHA_256, "username and password of this broker.")
    scram_sha_512_sasl_jaas_config: str = _jaas(SCRAM_SHA_512, "username and password of this broker.")
    sasl_oauthbearer_jwks_endpoint_url: str = _of_listener(
        "", "Keys that tokens of OAUTHBEARER are signed with, as JWKS: file:///PATH or https://HOST/PATH."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _of_listener(
        3_600_000, "Time between two fetches of these keys; a file is read again within seconds.", minimum=1000
    )
    sasl_oauthbearer_expected_audience: frozenset[str] = _of_listener(
        frozenset(),
        "Audiences (aud) of which a token must have one; empty: any.",
        form="names of audiences, separated by commas",
    )
    sasl_oauthbearer_expected_issuer: str = _of_listener("", "Issuer (iss) that a token must have; empty: any.")
    sasl_oauthbearer_sub_claim_name: str = _of_listener("sub", "The claim of a token whose value is the user.")
    sasl_oauthbearer_clock_skew_seconds: int = _of_listener(
        30, "How far the clocks of issuer and broker may differ.", minimum=0, maximum=3600
    )
    connections_max_reauth_ms: int = _of_listener(
        0, "A login holds for so long; then clients log in again, or are cut off. 0: as long as the connection.",
        minimum=0, maximum=INT64_MAX,
    )  # fmt: skip
