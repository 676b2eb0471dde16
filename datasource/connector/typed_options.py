"""The options of typed topics: which columns are in keys and values, and what becomes of records that do not fit.

`given` maps lower-case option names to texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from datasource.connector import option_parsing as parse
from datasource.connector.option_names import BATCH, WRITE, Uses
from datasource.connector.places import Assign, Subscribe, Topics
from logstore.errors import InvalidConfigError
from replication.client.registry_settings import PREFIX as REGISTRY

if TYPE_CHECKING:
    import pyarrow as pa

NEEDS_COLUMNS = "values with a format have columns: name them by .schema('user string, amount double')"
FORMATS = ("raw", "json", "avro", "avro-confluent")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
CORRUPT_RECORD = "_corrupt_record"
_INCLUDE = ("ALL", "EXCEPT_KEY")
# Each of these says how columns are bytes; the rest of the options needs one of them.
_OPENING = ("value.format", "key.format", "key.fields")
_SAID = (*_OPENING, "value.fields-include")
FORMAT_OPTIONS = (*_SAID, "key.fields-prefix")
EVOLUTIONS = ("fixed", "restart")
_RELATED = (
    "rescued",
    "metadata",
    "schema.evolution",
    "key.fields-prefix",
    "value.fields-include",
    "mode",
    "columnNameOfCorruptRecord",
    "dlq.topic",
    "dlq.name",
)


class TopicColumns(NamedTuple):
    """The columns of a topic's latest schemas, and the names in keys and in values by all of their versions.

    `versions`: the latest, by subject.
    """

    columns: tuple[pa.Field, ...]
    key: frozenset[str]
    value: frozenset[str]
    key_format: str
    value_format: str
    versions: dict[str, int]


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Where records go that do not fit, and the name under which they go; "": that of the query."""

    topic: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedOptions:
    """How columns are keys and values.

    `key_fields`: the columns of the key, without `key_prefix`, which their columns in Spark have; none: a key is no
    column. `is_key_in_value`: the value has these, too. `corrupt_record`: the column for values that do not fit.
    `is_registered`: formats and columns are those of the topic's schemas, which are looked up as `registered`;
    `columns`: these of them.
    """

    value_format: str
    key_format: str
    key_fields: tuple[str, ...]
    key_prefix: str
    is_key_in_value: bool
    mode: str
    corrupt_record: str
    dead_letters: DeadLetterTopic | None
    is_registered: bool
    has_metadata: bool
    is_rescuing: bool
    columns: tuple[str, ...] | None
    ends_at_new_schema: bool
    registered: TopicColumns | None = None


def typed_options(given: Mapping[str, str], uses: Uses) -> TypedOptions | None:
    """Return the checked options; None: keys and values are bytes. Raises: InvalidConfigError."""
    if not is_typed(given):
        for name in _RELATED:
            if name.lower() in given:
                raise _refused(given, name, "needs typed=true, or 'value.format', which says how values are columns")
        _check_registry(given)
        return None
    is_registered = parse.flag(given, "typed", default=False)
    if not is_registered and "avro-confluent" not in (given.get("value.format"), given.get("key.format")):
        _check_registry(given)
    if is_registered and (said := [name for name in _SAID if name in given]):
        raise _refused(given, said[0], "typed=true takes this from the topic's schemas: leave one away")
    key_fields = () if is_registered else _key_columns(given)
    dead_letters = _dead_letters(given, uses)
    mode = parse.choice(given, "mode", tuple(map(str.lower, MODES)), MODES[2 if dead_letters else 0].lower()).upper()
    if dead_letters and mode == "FAILFAST":
        raise _refused(given, "mode", "the first misfit ends the query: with 'dlq.topic' use DROPMALFORMED, PERMISSIVE")
    corrupt = given.get("columnnameofcorruptrecord", CORRUPT_RECORD).strip()
    if "columnnameofcorruptrecord" in given and (mode != "PERMISSIVE" or not corrupt):
        raise _refused(given, "columnNameOfCorruptRecord", "the name of a column, with mode=PERMISSIVE")
    _check_columns(given, uses, is_registered=is_registered)
    return TypedOptions(
        value_format=parse.choice(given, "value.format", FORMATS, FORMATS[0]),
        key_format=parse.choice(given, "key.format", FORMATS, FORMATS[0]),
        key_fields=key_fields,
        key_prefix=given.get("key.fields-prefix", ""),
        is_key_in_value=_includes_key(given),
        mode=mode,
        corrupt_record=corrupt,
        dead_letters=dead_letters,
        is_registered=is_registered,
        has_metadata=parse.flag(given, "metadata", default=False),
        is_rescuing=parse.flag(given, "rescued", default=False),
        columns=tuple(map(str.strip, given["columns"].split(","))) if "columns" in given else None,
        ends_at_new_schema=parse.choice(given, "schema.evolution", EVOLUTIONS, EVOLUTIONS[0]) == "restart",
    )


def is_typed(options: Mapping[str, str]) -> bool:
    """Whether keys or values are columns."""
    given = {name.lower(): value for name, value in options.items()}
    return given.get("typed", "false").strip().lower() != "false" or any(name in _OPENING for name in given)


def check_apart(typed: TypedOptions | None, topics: Topics) -> None:
    """Raise InvalidConfigError if a query would read the dead letters that it writes."""
    if typed is None or typed.dead_letters is None:
        return
    topic = typed.dead_letters.topic
    match topics:
        case Subscribe(names):
            reads = topic in names
        case Assign(partitions):
            reads = topic in partitions
        case _:
            reads = re.fullmatch(topics.pattern, topic) is not None
    if reads:
        raise parse.bad("dlq.topic", topic, "the query reads this topic: choose another, or a pattern without it")


def _check_columns(given: Mapping[str, str], uses: Uses, *, is_registered: bool) -> None:
    """Raise InvalidConfigError for an option that names columns where another way does."""
    if uses == WRITE:
        return
    if is_registered and "includeheaders" in given:
        raise _refused(given, "includeHeaders", "with typed=true set metadata=true, or name _headers in 'columns'")
    if is_registered:
        return
    for name in ("columns", "includeHeaders", "metadata"):
        if name.lower() in given:
            remedy = "with 'value.format' name the columns in .schema(...)"
            raise _refused(given, name, f"{remedy}, headers as _headers array<struct<key:string,value:binary>>")
    if "rescued" in given:
        raise _refused(given, "rescued", "needs typed=true; in .schema(...) name the column '_rescued string'")
    if "schema.evolution" in given:
        raise _refused(given, "schema.evolution", "needs typed=true: columns of .schema(...) stay as they are")


def _key_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("key.fields")
    if text is None:
        for name in ("key.format", "key.fields-prefix", "value.fields-include"):
            if name in given:
                raise _refused(given, name, "needs 'key.fields', the columns of the key, as user;tenant")
        return ()
    found = tuple(part.strip() for part in re.split("[;,]", text))
    if not all(found) or len(set(found)) < len(found):
        raise _refused(given, "key.fields", "columns, each once, as user;tenant")
    prefix = given.get("key.fields-prefix", "")
    if wrong := [name for name in found if not name.startswith(prefix)]:
        raise _refused(given, "key.fields", f"{wrong[0]!r} does not begin with 'key.fields-prefix', {prefix!r}")
    columns = tuple(name.removeprefix(prefix) for name in found)
    if not all(columns):
        raise _refused(given, "key.fields-prefix", "nothing would be left of a name in 'key.fields'")
    return columns


def _includes_key(given: Mapping[str, str]) -> bool:
    default = _INCLUDE["key.fields-prefix" in given]
    include = parse.choice(given, "value.fields-include", tuple(map(str.lower, _INCLUDE)), default.lower())
    if include == "all" and "key.fields-prefix" in given:
        raise _refused(given, "value.fields-include", "EXCEPT_KEY: no column of a value has the key's prefix")
    return include == "all"


def _dead_letters(given: Mapping[str, str], uses: Uses) -> DeadLetterTopic | None:
    name = given.get("dlq.name", "").strip()
    if "dlq.topic" not in given:
        if "dlq.name" in given:
            raise _refused(given, "dlq.name", "needs 'dlq.topic'")
        return None
    topic = given["dlq.topic"].strip()
    if not topic:
        raise _refused(given, "dlq.topic", "the name of a topic")
    if ("dlq.name" in given and not name) or "|" in name:
        raise _refused(given, "dlq.name", "a name without |")
    if uses == BATCH and not name:
        raise InvalidConfigError(
            "option 'dlq.topic' of a batch read needs 'dlq.name': a name of your own, the same whenever this read runs "
            "again, so that each misfit is one dead letter",
            option="dlq.name",
        )
    return DeadLetterTopic(topic, name)


def _check_registry(given: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for an option of a registry, which nobody will ask."""
    for name in given:
        if name.startswith(REGISTRY):  # and not the value: it may hold a password
            raise InvalidConfigError(f"option {name!r} needs typed=true, or the format avro-confluent", option=name)


def _refused(given: Mapping[str, str], name: str, rule: str) -> InvalidConfigError:
    return parse.bad(name, given[name.lower()].strip(), rule)
