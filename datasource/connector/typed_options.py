"""The options of typed topics: which columns are in keys and values, and what becomes of records that do not fit.

`given` maps lower-case option names to texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from datasource.connector import option_parsing as parse
from datasource.connector.option_names import BATCH, WRITE, Uses
from datasource.connector.places import Assign, Subscribe, Topics
from logstore.errors import InvalidConfigError
from logstore.schemas.layout import CONFLUENT, CORRUPT_RECORD, Layout, Mode, layout_of
from replication.client.registry_settings import PREFIX as REGISTRY

if TYPE_CHECKING:
    import pyarrow as pa

NEEDS_COLUMNS = "values with a format have columns: name them by .schema('user string, amount double')"
# The words of `layout_of`, as options.
_OPTIONS = {
    "value_format": "value.format",
    "key_format": "key.format",
    "key_fields": "key.fields",
    "key_fields_prefix": "key.fields-prefix",
    "value_fields_include": "value.fields-include",
    "value_subject": "value.subject",
    "key_subject": "key.subject",
    "mode": "mode",
}
# Each of these says how columns are bytes; the rest of the options needs one of them.
_OPENING = ("value.format", "key.format", "key.fields")
FORMAT_OPTIONS = (*_OPENING, "value.fields-include", "key.fields-prefix")
EVOLUTIONS = ("fixed", "restart")
_RELATED = (
    "rescued",
    "metadata",
    "schema.evolution",
    "value.subject",
    "key.subject",
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

    `corrupt_record`: the column for values that do not fit. `is_registered`: formats and columns are those of the
    topic's schemas, which are looked up as `registered`; `columns`: these of them.
    """

    layout: Layout
    corrupt_record: str
    dead_letters: DeadLetterTopic | None
    is_registered: bool
    has_metadata: bool
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
    dead_letters = _dead_letters(given, uses)
    words: dict[str, object] = {word: given[name] for word, name in _OPTIONS.items() if name in given}
    words |= {"typed": is_registered, "rescued": parse.flag(given, "rescued", default=False)}
    default = Mode.DROPMALFORMED if dead_letters else Mode.FAILFAST
    layout = layout_of(words, value="raw", mode=default, spelt=_spelt, refused=parse.bad)
    if not is_registered and CONFLUENT not in (layout.value, layout.key):
        _check_registry(given)
    if dead_letters and layout.mode is Mode.FAILFAST:
        raise _refused(given, "mode", "the first misfit ends the query: with 'dlq.topic' use DROPMALFORMED, PERMISSIVE")
    corrupt = given.get("columnnameofcorruptrecord", CORRUPT_RECORD).strip()
    if "columnnameofcorruptrecord" in given and (layout.mode is not Mode.PERMISSIVE or not corrupt):
        raise _refused(given, "columnNameOfCorruptRecord", "the name of a column, with mode=PERMISSIVE")
    _check_columns(given, uses, is_registered=is_registered)
    return TypedOptions(
        layout=layout,
        corrupt_record=corrupt,
        dead_letters=dead_letters,
        is_registered=is_registered,
        has_metadata=parse.flag(given, "metadata", default=False),
        columns=tuple(map(str.strip, given["columns"].split(","))) if "columns" in given else None,
        ends_at_new_schema=parse.choice(given, "schema.evolution", EVOLUTIONS, EVOLUTIONS[0]) == "restart",
    )


def _spelt(word: str) -> str:
    """Return a word of `layout_of` as Spark's user writes it."""
    return "'value.format' and .schema(...)" if word == "schema" else _OPTIONS.get(word, f"{word}=true")


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
            reads = topics.matches(topic)
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
