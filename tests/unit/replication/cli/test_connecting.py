"""The end of a command that goes on until a signal comes."""

import signal
import sys

import pytest

from replication.cli.connecting import end_of_signals

MOMENTS = 100  # lines, calls and returns: more than a wait has


@pytest.fixture(autouse=True)
def _same_handlers():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_a_wait_ends_it(number):
    for moment in range(MOMENTS):
        is_over, left = end_of_signals(), moment

        def trace(*_):
            nonlocal left
            if left == 0:
                signal.raise_signal(number)
            left -= 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            while not is_over.wait(0.001):
                pass
        finally:
            sys.settrace(before)
        assert is_over.is_set()
        assert is_over.wait()


def test_a_second_signal_interrupts():
    is_over = end_of_signals()
    signal.raise_signal(signal.SIGTERM)
    assert is_over.wait()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
