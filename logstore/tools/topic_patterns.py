"""Topics by name or by pattern: the rule of the commands that take either.

A text of which a topic's name could consist is a name, and matches that topic alone: "orders.v1" never matches
"orders_v1", as it would with Kafka's tools. Every other text is a regular expression for whole names; a comma separates
alternatives, as there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from logstore.errors import InvalidRequestError
from logstore.store.description import TOPIC_NAME

_COMMA = re.compile(r",(?!\d*\})")  # not that of a{2,3}


def is_pattern(text: str) -> bool:
    return TOPIC_NAME.fullmatch(text) is None


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the regular expression. Raises: InvalidRequestError: it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"{pattern!r} is not a regular expression: {error}") from None


def matching(text: str, names: Iterable[str]) -> list[str]:
    """Return which of `names` the text chooses, sorted. Raises: InvalidRequestError: it is no regular expression."""
    if not is_pattern(text):
        return [text] if text in names else []
    patterns = [compiled(part.strip()) for part in _COMMA.split(text)]
    return sorted(name for name in names if any(pattern.fullmatch(name) for pattern in patterns))


def deletable(text: str, names: Iterable[str]) -> list[str]:
    """Return what `matching` does; a pattern leaves out internal topics (`__…`), which must be named to be deleted."""
    return [name for name in matching(text, names) if not (is_pattern(text) and name.startswith("__"))]
