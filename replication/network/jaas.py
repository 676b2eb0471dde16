"""JAAS lines: the login module of Java that a mechanism has, and what it is told. No error shows a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# A login module of Java, by the last part of its name, and the mechanisms that it serves.
_MODULES = {"PlainLoginModule": MECHANISMS[:1], "ScramLoginModule": MECHANISMS[1:]}
_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_JAAS_PAIR = re.compile(r"""\s*([^\s"'=;]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';]+)""", re.DOTALL)


def example(mechanism: str) -> str:
    module = _module(mechanism)
    package = module.removesuffix("LoginModule").lower()
    return f'org.apache.kafka.common.security.{package}.{module} required username="…" password="…";'


def parse(text: str, mechanism: str) -> Mapping[str, str]:
    """Return the options of the module's line. Raises: ValueError: the rule that it breaks, in words."""
    found = _JAAS.fullmatch(text)
    if found is None or found[1].rpartition(".")[2] != _module(mechanism):
        raise ValueError(f"{mechanism} needs {example(mechanism)}")
    pairs = [(pair[1], _unquoted(pair[2])) for pair in _JAAS_PAIR.finditer(found[2])]
    if _JAAS_PAIR.sub("", found[2]).strip() or len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(f"NAME=VALUE, each once: {example(mechanism)}")
    return dict(pairs)


def _module(mechanism: str) -> str:
    return next(module for module, served in _MODULES.items() if mechanism in served)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text[0] in "\"'" else text
