"""How long operations report how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # (done, total)


def no_progress(done: int, total: int) -> None:
    """Show nothing."""
