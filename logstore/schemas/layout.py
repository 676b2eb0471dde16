"""Layout: which columns of a record are in its key and in its value, in which formats, as a caller's words say.

The words are those of `choice.Typing`, whatever a caller spells them like: Spark's options, keywords, options of
commands. Loads nothing that is slow to load: Spark plans each micro-batch in a new process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from logstore.errors import InvalidConfigError

FORMATS = ("json", "raw", "avro", "avro-confluent")
CONFLUENT = FORMATS[-1]
CORRUPT_RECORD = "_corrupt_record"  # the column with the bytes of a misfit
_INCLUDE = ("ALL", "EXCEPT_KEY")
_NEED_KEYS = ("key_format", "key_fields_prefix", "value_fields_include")
_REGISTERED = ("value_format", "key_format", "value_fields_include")
_SUBJECTS = ("value_subject", "key_subject")


class Mode(StrEnum):
    """How a reader goes on at a misfit, in the words of Spark's JSON source."""

    FAILFAST = "FAILFAST"
    PERMISSIVE = "PERMISSIVE"  # a row of nulls, and the value in the column `_corrupt_record`, if there is one
    DROPMALFORMED = "DROPMALFORMED"


def same(name: str) -> str:
    """The spelling of keyword arguments, which is that of `choice.Typing`."""
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the columns of a topic are, and in which formats.

    `key_fields`: the columns of the key, with `key_prefix`, which they have beside it only; none: a key is no column.
    `is_key_in_value`: the value has these, too. `is_rescuing`: a column has the members of JSON that are not declared.
    `value_subject`, `key_subject`: those of the topic's schemas, where the topic itself does not say. `spelt` gives a
    word as its caller writes it.
    """

    value: str = "json"
    key: str = "raw"
    key_fields: tuple[str, ...] = ()
    key_prefix: str = ""
    is_key_in_value: bool = True
    mode: Mode = Mode.FAILFAST
    is_rescuing: bool = False
    value_subject: str = ""
    key_subject: str = ""
    spelt: Callable[[str], str] = field(default=same, compare=False)


def _refused(name: str, word: str, rule: str) -> InvalidConfigError:
    return InvalidConfigError(f"{name}={word!r}: {rule}", option=name, value=word)


def layout_of(
    words: Mapping[str, Any],
    *,
    value: str = "json",
    mode: Mode = Mode.FAILFAST,
    spelt: Callable[[str], str] = same,
    refused: Callable[[str, str, str], InvalidConfigError] = _refused,
) -> Layout:
    """Return what the words say; `value` and `mode` count where they are silent. Other names are passed over.

    `refused` gives the error for a name as `spelt`, its word and the rule.

    Raises: InvalidConfigError: a word that is none, or two that exclude each other.
    """
    given = _Words(words, spelt, refused)
    given.check_together()
    prefix = words.get("key_fields_prefix", "")
    return Layout(
        value=given.one_of(FORMATS, "value_format", value),
        key=given.one_of(FORMATS, "key_format", "raw"),
        key_fields=given.key_fields(prefix),
        key_prefix=prefix,
        is_key_in_value=given.is_key_in_value(prefix),
        mode=Mode(given.one_of(list(Mode), "mode", mode)),
        is_rescuing=bool(words.get("rescued", False)),
        value_subject=given.subject("value_subject"),
        key_subject=given.subject("key_subject"),
        spelt=spelt,
    )


class _Words(NamedTuple):
    given: Mapping[str, Any]
    spelt: Callable[[str], str]
    refused: Callable[[str, str, str], InvalidConfigError]

    def wrong(self, name: str, rule: str) -> InvalidConfigError:
        word = self.given[name]
        shown = word if isinstance(word, str | int | None) else ";".join(map(str, word))
        return self.refused(self.spelt(name), str(shown), rule)

    def one_of(self, known: Sequence[str], name: str, default: str) -> str:
        if name not in self.given:
            return default
        found = [word for word in known if word.lower() == str(self.given[name]).strip().lower()]
        if not found:
            raise self.wrong(name, f"one of {', '.join(known)}")
        return found[0]

    def check_together(self) -> None:
        if self.given.get("typed"):
            for name in _REGISTERED:
                if name in self.given:
                    raise self.wrong(name, f"{self.spelt('typed')} takes this from the topic's schemas: leave one away")
            if "key_fields" in self.given and (said := {"key_fields_prefix", "key_subject"} & set(self.given)):
                raise self.wrong(min(said), f"only of a key with a schema: leave {self.spelt('key_fields')} away")
            return
        for name in _SUBJECTS:
            if name in self.given:
                raise self.wrong(name, f"needs {self.spelt('typed')}, which takes the columns of a subject")
        if "key_fields" not in self.given:
            for name in _NEED_KEYS:
                if name in self.given:
                    raise self.wrong(name, f"needs {self.spelt('key_fields')}, the columns of the key, as user;tenant")

    def subject(self, name: str) -> str:
        if name in self.given and not str(self.given[name]).strip():
            raise self.wrong(name, "the name of a subject, as shop.Order")
        return str(self.given.get(name, "")).strip()

    def key_fields(self, prefix: str) -> tuple[str, ...]:
        if "key_fields" not in self.given:
            return ()
        given = self.given["key_fields"]
        found = tuple(part.strip() for part in (re.split("[;,]", given) if isinstance(given, str) else given))
        if not found or not all(found) or len(set(found)) < len(found):
            raise self.wrong("key_fields", "columns, each once, as user;tenant")
        for name in found:
            if not name.startswith(prefix):
                rule = f"{name!r} does not begin with {self.spelt('key_fields_prefix')}, {prefix!r}"
                raise self.wrong("key_fields", rule)
            if name == prefix:
                raise self.wrong("key_fields_prefix", f"nothing would be left of a name in {self.spelt('key_fields')}")
        return found

    def is_key_in_value(self, prefix: str) -> bool:
        include = self.one_of(_INCLUDE, "value_fields_include", _INCLUDE[bool(prefix)])
        if prefix and include == _INCLUDE[0]:
            raise self.wrong("value_fields_include", "EXCEPT_KEY: no column of a value has the key's prefix")
        return include == _INCLUDE[0]
