"""Parse the text of one option into a value. Each raises InvalidConfigError, with one line that says how to write it.

`given` maps lower-case option names to texts, `name` is the option as documented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from logstore.errors import InvalidConfigError
from logstore.records import times


def bad(name: str, value: str, rule: str) -> InvalidConfigError:
    shown = value if len(value) <= 80 else value[:77] + "..."
    return InvalidConfigError(f"option {name}={shown!r}: {rule}", option=name, value=value)


def _json_value(name: str, text: str, example: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise bad(name, text, "a topic or partition is named twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError:
        raise bad(name, text, f"not JSON; write it like {example}") from None


def per_partition(
    name: str, text: str, minimum: int, example: str, *, number_of: Callable[[str], int | None] | None = None
) -> dict[str, dict[int, int]]:
    """Return topic -> partition -> a number not below `minimum`, or a text that `number_of` takes; all sorted."""
    value = _json_value(name, text, example)
    if not isinstance(value, dict) or not value or not all(isinstance(part, dict) for part in value.values()):
        raise bad(name, text, f"write it like {example}")
    for topic, parts in value.items():
        for partition, given in parts.items():
            if number_of is not None and isinstance(given, str):
                parts[partition] = number_of(given)
            if not (partition.isdecimal() and _is_count(parts[partition], minimum)):
                raise bad(name, text, f"{topic}: {partition!r}: {given!r} is not valid; write it like {example}")
    return {topic: {int(p): value[topic][p] for p in sorted(value[topic], key=int)} for topic in sorted(value)}


def assignment(name: str, text: str) -> dict[str, tuple[int, ...]]:
    """Return topic -> sorted partition numbers, topics sorted."""
    example = '{"orders":[0,1]}'
    value = _json_value(name, text, example)
    if not isinstance(value, dict) or not value:
        raise bad(name, text, f"write it like {example}")
    for topic, partitions in value.items():
        if not (isinstance(partitions, list) and partitions and all(_is_count(p) for p in partitions)):
            raise bad(name, text, f"topic {topic!r} needs a list of partition numbers, like {example}")
    return {topic: tuple(sorted(set(value[topic]))) for topic in sorted(value)}


def pattern(name: str, text: str) -> str:
    """Return the text if it compiles as a Python regular expression."""
    if not text:
        raise bad(name, text, "a Python regular expression for whole topic names")
    try:
        re.compile(text)
    except re.error as error:
        raise bad(name, text, f"not a Python regular expression: {error}") from None
    return text


def _is_count(value: object, minimum: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def whole(given: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number, 0 or more."""
    text = given.get(name.lower(), str(default)).strip()
    if not text.isdecimal():
        raise bad(name, text, "a whole number, 0 or more")
    return int(text)


TIME = "milliseconds since 1970, or a time with a zone like '2026-11-28 16:00:00+01:00', also as a datetime"


def time_ms(given: Mapping[str, str], name: str) -> int:
    """Return a time in milliseconds. PySpark hands a datetime over as its text."""
    text = given[name.lower()].strip()
    found = times.of_text(text)
    if found is None or found < 0:
        raise bad(name, text, TIME)
    return found


def positive(given: Mapping[str, str], name: str) -> int | None:
    """Return a whole number, 1 or more; None if the option is absent."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise bad(name, text, "a whole number, 1 or more")
    return int(text)


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    return choice(given, name, ("true", "false"), "true" if default else "false") == "true"


def choice(given: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip().lower()
    if text not in choices:
        raise bad(name, text, f"one of {', '.join(choices)}")
    return text


def duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    """Return milliseconds; a number without a unit is milliseconds, as in Spark."""
    text = given.get(name.lower())
    if text is None:
        return default
    found_ms = times.length_ms(text)
    if found_ms is None:
        raise bad(name, text, times.LENGTH)
    return found_ms
