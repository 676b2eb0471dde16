"""Shared by all commands on a cluster: connecting, and errors for missing options or packages."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import click

from logstore.cli.places import bootstrap_option, command_config_option
from logstore.cli.terminal import Failure, output_option
from logstore.errors import InvalidConfigError
from replication.config.properties import properties_of

Function = Callable[..., Any]


def connected(function: Function) -> Function:
    """Call the function with `client`, a KafkaClient, where it is given `bootstrap` and `command_config`."""

    @wraps(function)
    def call(bootstrap: str | None, command_config: Path | None, **options: Any) -> Any:
        if not bootstrap:
            raise click.UsageError("give brokers of the cluster: --bootstrap-server HOST:PORT")
        with naming_missing_packages():
            from replication.tools.connecting import client_of
        try:
            client = client_of(bootstrap, properties_in(command_config), client_id="pylog")
        except InvalidConfigError as error:
            raise click.UsageError(str(error)) from error
        try:
            with client:
                return function(client=client, **options)
        except (ConnectionError, TimeoutError) as error:
            if isinstance(error, BrokenPipeError):  # of stdout
                raise
            raise Failure(f"a broker does not answer: {error}") from error

    return call


def on_cluster(function: Function) -> Function:
    """Add the options that say which cluster, and how to print; the function is called with `client` and `output`."""
    return output_option(bootstrap_option(command_config_option(connected(function))))


@contextmanager
def naming_missing_packages() -> Iterator[None]:
    """Turn a library that is not installed into a line that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(f'clusters need {error.name}: pip install "pyspark-pylog[cluster]"') from error


def properties_in(file: Path | None) -> dict[str, str]:
    """The settings of a file, a line each; none without a file. Raises: InvalidConfigError."""
    if file is None:
        return {}
    try:
        return properties_of(file.read_text(encoding="utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{file}: byte {error.start} is not UTF-8 text") from error


class _SignalledEvent(threading.Event):
    """An event that a signal handler may set wherever it interrupts, also in `wait`.

    `threading.Event.set` takes the lock that `wait` holds at its begin and end: a handler that runs in the same thread
    just then would wait for itself. To put into a SimpleQueue takes no such lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set, self._wakes = False, SimpleQueue[None]()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wakes.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        with suppress(Empty):
            self._wakes.get(timeout=timeout)
            self._wakes.put(None)  # for whoever waits too, or later
        return self._is_set


def end_of_signals() -> threading.Event:
    """Return the event that SIGTERM and Ctrl-C set from now on; a second one interrupts."""
    is_over = _SignalledEvent()

    def end(_number: int, _frame: FrameType | None) -> None:
        if is_over.is_set():
            raise KeyboardInterrupt
        is_over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return is_over


def numbers(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """The callback of an option that is a list of numbers, as in 0,1,2."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of numbers, as in 0,1,2")
    return tuple(map(int, parts))
