"""Options that say which columns records have: of `produce` and `consume`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from logstore.schemas.layout import Mode

if TYPE_CHECKING:
    from logstore.schemas.choice import Typing
    from logstore.schemas.registry import Schemas
    from logstore.tools.console import LineTarget, Shower

_BOTH = (
    click.option("--typed", is_flag=True, default=None, help="Records have the columns of the topic's schemas."),
    click.option("--schema", metavar="DDL", help="Records have these columns: 'user string, amount decimal(10,2)'."),
    click.option(
        "--value-format", metavar="FORMAT", help="With --schema: json, raw, avro, avro-confluent. [default: json]"
    ),
    click.option("--key-format", metavar="FORMAT", help="Likewise of the key. [default: raw]"),
    click.option("--key-fields", metavar="NAMES", help="The columns in the key, as user;tenant."),
    click.option("--value-subject", metavar="SUBJECT", help="With --typed: where the schema of the values is."),
    click.option("--key-subject", metavar="SUBJECT", help="Likewise of the keys."),
)
_READING = (
    click.option(
        "--mode",
        type=click.Choice([mode.value for mode in Mode], case_sensitive=False),
        help="Of a record without these columns: an error, nulls, or nothing. [default: FAILFAST]",
    ),
    click.option(
        "--metadata", is_flag=True, default=None, help="With the columns _topic, _partition, _offset and others."
    ),
)
_NAMES = (
    *("typed", "schema", "value_format", "key_format", "key_fields", "value_subject", "key_subject"),
    *("mode", "metadata"),
)


def typing_options(*, reading: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add these options; the function is called with `typing`, those that are given."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**options: Any) -> Any:
            given = {name: options.pop(name, None) for name in _NAMES}
            return function(typing={name: value for name, value in given.items() if value is not None}, **options)

        for option in reversed((*_BOTH, *(_READING if reading else ()))):
            call = option(call)
        return call

    return decorate


def _spelt(word: str) -> str:
    return f"--{word.replace('_', '-')}"


def typed_target(target: LineTarget, topic: str, typing: Typing, schemas: Callable[[], Schemas]) -> LineTarget:
    """Return the target for lines that are these columns; without any it is the same. Raises: as `chosen`."""
    if not typing:
        return target
    from logstore.schemas.choice import chosen
    from logstore.tools.typed_console import TypedTarget

    return TypedTarget(target, chosen(topic, typing, schemas, target.topic, _spelt))


def typed_formatter(
    topic: str, output: str, typing: Typing, schemas: Callable[[], Schemas], known: Callable[[str], object]
) -> Shower:
    """Return the formatter of records that are these columns. Raises: as `chosen`."""
    from logstore.schemas.choice import chosen
    from logstore.tools.typed_console import formatter

    return formatter(chosen(topic, typing, schemas, known, _spelt), output)
