"""For all tests: Ctrl-C reaches the processes that they start."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Undo what pytest-xdist does to its workers: their children would inherit that they ignore SIGINT."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)
