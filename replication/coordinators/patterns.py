"""Patterns of RE2 over names, as a Kafka's brokers match them: in linear time, whatever a client writes."""

from __future__ import annotations

from collections.abc import Iterable

from replication.errors import ErrorCode, KafkaError

PATTERN_CHARS_MAX = 4096  # a pattern takes some 200 bytes a character


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return those names that the whole pattern matches, in their order.

    Call it in a thread: the first call loads pyarrow, which takes a second, and 90 MB for good.

    Raises: KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        said = f"it has {len(pattern)} characters, at most {PATTERN_CHARS_MAX} are taken"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, said)
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pa.array(list(names), pa.string())
    try:
        pc.match_substring_regex(pa.array([""]), pattern)  # by itself: it must not end the parentheses around it
        found = column.filter(pc.match_substring_regex(column, rf"\A(?:{pattern})\z"))
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason) from None
    return tuple(found.to_pylist())
