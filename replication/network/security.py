"""Security: whether a broker is met with TLS and SASL, and as whom.

Values only: files are read, and passwords are sent, in `authentication`. No repr shows a password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How brokers are met. Files are PEM files on the machine that connects.

    ca_file: whose certificates are believed; "": those that the machine believes. certificate_file: the client's own,
    with its key unless key_file has it; "": none. mechanism: of SASL; "": none.
    """

    has_tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)  # of TLS, instead of files
    # By one broker of another, behind what else there is: its number, and the secret of their cluster. must_prove: one
    # that does not know SaslHandshake is none; else it may be of the release before.
    broker: int = -1
    secret: bytes = field(default=b"", repr=False)
    must_prove: bool = False

    @property
    def protocol(self) -> str:
        """The value of security.protocol."""
        return PROTOCOLS[self.has_tls + 2 * bool(self.mechanism)]

    @property
    def settings(self) -> dict[str, str]:
        """The settings that `security_of` makes it from, passwords included."""
        named = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "ssl.key.password": self.key_password,
        }
        check = {} if self.checks_host_name else {"ssl.endpoint.identification.algorithm": ""}
        return {name: value for name, value in named.items() if value} | check if self != PLAINTEXT else {}


PLAINTEXT = Security()
