"""How often tests that throw dice repeat: enough in the default run to meet every kind of fault, more with `--long`.

`--soak`, which `make soak` gives, is `--long` with the lengths that a person waits for: minutes per test, not seconds.
"""

import os

import pytest
from hypothesis import settings

_is_long = _is_soak = False
# On a busy machine any example may take any time.
settings.register_profile("short", deadline=None, max_examples=25)
settings.register_profile("long", deadline=None, max_examples=150)


def choose(*, is_long: bool, is_soak: bool = False) -> None:
    """Say, before tests are collected, how long they may take."""
    global _is_long, _is_soak
    _is_long, _is_soak = is_long or is_soak, is_soak
    settings.load_profile("long" if _is_long else "short")


def times(few: int, many: int, variable: str = "") -> int:
    """Return `many` with --long, else `few`. The environment variable, where one is named and set, overrules both."""
    return int(os.environ.get(variable, many if _is_long else few))


def soaked(usual: int, soak: int) -> int:
    """Return `soak` with --soak, else `usual`. A test that asks has the marks `soak` and, where need be, `timeout`."""
    return soak if _is_soak else usual


def only_long(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that only runs with --long; `why`: what makes it dear."""
    return pytest.mark.skipif(not _is_long, reason=f"{why}: with --long")
