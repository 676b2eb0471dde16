"""Principals out of certificates: the distinguished name of a client as Kafka writes it, and the rules that map it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replication.security.access import ANONYMOUS, Principal

DEFAULT = "DEFAULT"
# OpenSSL's names of the attributes that RFC 2253 has a keyword for. Others keep OpenSSL's, where Java writes numbers.
_KEYWORDS: Mapping[str, str] = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL, _EMAIL_NUMBER = "emailAddress", "1.2.840.113549.1.9.1"
_IA5 = b"\x16"  # DER: a text of ASCII
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<text>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_NAME_BYTES_MAX = 4096
# Escaped as in Java: all that separates, and spaces at both ends.
_ESCAPED = re.compile(r'[,=+<>#;"\\]|^[ \r]+|[ \r]+\Z')


class Rule(NamedTuple):
    """`pattern` None: the name as it is."""

    pattern: re.Pattern[str] | None
    text: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name of the user; None: the rule says nothing about it."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self.text, name, count=1)
        return {"L": found.lower(), "U": found.upper()}.get(self.case, found)


def parse_rules(text: str) -> Sequence[Rule]:
    """Read ssl.principal.mapping.rules. Raises: ValueError: what is wrong, in words."""
    return tuple(_rules(text.strip() or DEFAULT))


def _rules(text: str) -> Iterator[Rule]:
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise ValueError(
                f"from {text[at : at + 40]!r} on: RULE:pattern/replacement/, with L or U behind it, or DEFAULT"
            )
        at = found.end()
        if found["default"]:
            yield Rule(None)
            continue
        try:
            pattern = re.compile(found["pattern"])
            replacement = re.sub(r"\$(\d+)", r"\\g<\1>", found["text"])
            pattern.sub(replacement, "")
            if any(int(number) > pattern.groups for number in re.findall(r"\\g<(\d+)>", replacement)):
                raise ValueError(f"RULE:{found['pattern']}/{found['text']}/ names a group that the pattern has not")
        except re.error as error:
            raise ValueError(f"RULE:{found['pattern']}/…: {error}") from None
        yield Rule(pattern, replacement, found["case"])


def principal_of(certificate: Mapping[str, Any] | None, rules: Sequence[Rule]) -> Principal | None:
    """Return whose a checked certificate is, in the form of Python's `ssl`; ANONYMOUS without one.

    None: no rule says anything about its name.
    """
    if not certificate:
        return ANONYMOUS
    name = distinguished_name(certificate["subject"])
    if len(name) > _NAME_BYTES_MAX:
        return None
    found = next((user for rule in rules if (user := rule.apply(name)) is not None), None)
    return Principal(found) if found else None


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a subject as RFC 2253 writes it: the last part first."""
    return ",".join("+".join(_attribute(*pair) for pair in part) for part in reversed(subject))


def _attribute(name: str, value: str) -> str:
    if name == _EMAIL and len(text := value.encode()) < 128:
        return f"{_EMAIL_NUMBER}=#{(_IA5 + bytes((len(text),)) + text).hex()}"
    escaped = _ESCAPED.sub(lambda found: "".join(f"\\{each}" for each in found[0]), value).replace("\0", "\\00")
    return f"{_KEYWORDS.get(name, name)}={escaped}"
