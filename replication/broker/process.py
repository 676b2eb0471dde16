"""A broker as a process: settings in, one line with its address out, and an orderly end at SIGTERM.

`run` is what `pylog broker start` does; `python -m replication.broker.process KEY=VALUE …` is the same without the
command line's libraries, which is how a LocalCluster starts its brokers.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from logstore.errors import FailedStoreError, PylogError
from logstore.store.log_dir import BROKER
from replication.broker import garbage
from replication.broker.broker import Broker
from replication.broker.logs import begin_logging
from replication.config.broker import BrokerConfig
from replication.replica.storage.log_dir import check_directory

logger = logging.getLogger(__name__)

PARENT_LOOK_S = 0.5
# What a broker makes is 0750 and 0640: what clients wrote is no business of others on its machine.
NOT_FOR_OTHERS = 0o027
# glibc's malloc: numbers of its parameters (malloc.h), and what they are set to.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, MAPPED_BYTES_MIN = 128 * 1024 * 1024, 32 * 1024 * 1024


def run(config: BrokerConfig, say: Callable[[str], None], *, parent: int | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT; `say` its address once it serves. With `parent`, end when that is gone.

    Raises: PylogError, OSError: it cannot start. If the directory is another's, or in use, nothing was written there.
    """
    check_directory(config)
    os.umask(os.umask(NOT_FOR_OTHERS) | NOT_FOR_OTHERS)
    _keep_memory()
    garbage.begin()
    begin_logging(Path(config.log_dirs) / BROKER)
    if not _is_loopback(config.listener.host):
        logger.warning(
            "listeners=%s: whoever reaches this address may read and change everything; there is no TLS and no login",
            config.listeners,
        )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(config, say, parent))


def _keep_memory() -> None:
    """Have free memory used again for the next answer or request, and not given back to the system at once.

    The system clears every page that it hands out anew: that costs more than reading records into it. Where the
    C library has no such parameters, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig, say: Callable[[str], None], parent: int | None) -> None:
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_over.set)
    beside: list[asyncio.Task[None]] = []
    if parent is not None:
        beside.append(loop.create_task(_watch(parent, is_over)))
    broker = Broker(config)
    ending = loop.create_task(is_over.wait())
    beside.append(loop.create_task(_end_with(broker.replicas.disk_failed, is_over)))
    starting = loop.create_task(broker.start())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            beside.append(loop.create_task(garbage.search()))
            say(f"bootstrap={starting.result()}")
            await ending
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        for task in beside:
            task.cancel()
        await broker.stop()
    if broker.replicas.disk_failed.is_set():
        raise FailedStoreError(
            f"{config.log_dirs}: the disk failed; check it, then run `pylog recover {config.log_dirs}`"
        )


async def _end_with(failure: asyncio.Event, is_over: asyncio.Event) -> None:
    """A broker that cannot trust its disk hands over what it can, and ends."""
    await failure.wait()
    logger.error("the disk failed: this broker ends")
    is_over.set()


async def _watch(parent: int, is_over: asyncio.Event) -> None:
    """End with the process that started this one, however it ended."""
    while os.getppid() == parent:  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(PARENT_LOOK_S)
    is_over.set()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: list[str]) -> int:
    """Run a broker with these settings, for as long as the parent process lives."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    parent = int(settings.pop("parent"))
    try:
        run(BrokerConfig.from_properties(settings), _say, parent=parent)
    except (PylogError, OSError) as error:
        if logging.getLogger().handlers:  # else it was refused before anything may be written
            logger.error("%s", error)
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
