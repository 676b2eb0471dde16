"""How often tests that throw dice repeat: enough in the default run to meet every kind of fault, more with `--long`."""

import os

import pytest
from hypothesis import settings

_is_long = False
# On a busy machine any example may take any time.
settings.register_profile("short", deadline=None, max_examples=60)
settings.register_profile("long", deadline=None, max_examples=150)


def choose(*, is_long: bool) -> None:
    """Say, before tests are collected, which of the two it is."""
    global _is_long  # noqa: PLW0603 - modules ask while they are imported
    _is_long = is_long
    settings.load_profile("long" if is_long else "short")


def times(few: int, many: int, variable: str = "") -> int:
    """Return `many` with --long, else `few`. The environment variable, where one is named and set, overrules both."""
    return int(os.environ.get(variable, many if _is_long else few))


def only_long(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that only runs with --long; `why`: what makes it dear."""
    return pytest.mark.skipif(not _is_long, reason=f"{why}: with --long")
