"""A broker as a process: settings in, one line with its address out, and an orderly end at SIGTERM.

`run` is the body of `pylog broker start`; `python -m replication.broker.process KEY=VALUE …` is the same without the
libraries of the command line, for LocalCluster.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # kio imports hypothesis wherever it is installed: a third of the work of a start
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from logstore.env import SYSTEM, machine
from logstore.errors import FailedStoreError, PylogError
from logstore.store.log_dir import BROKER
from replication.broker import garbage
from replication.broker.broker import Broker
from replication.broker.cut_off import CutOff
from replication.broker.logs import begin_logging
from replication.config.broker import BrokerConfig
from replication.coordination.own_file import check_directory
from replication.model.listeners import Listener, SecurityProtocol
from replication.network.admission import open_files_max
from replication.network.loops import new_event_loop

logger = logging.getLogger(__name__)

PARENT_LOOK_S = 0.5
NOT_FOR_OTHERS = 0o027  # a umask: other users of the machine must not read what clients wrote
# See `machine.keep_memory`.
KEPT_BYTES, MAPPED_BYTES_MIN = 128 * 1024 * 1024, 32 * 1024 * 1024


def run(config: BrokerConfig, say: Callable[[str], None], *, parent: int | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT; `say` its address once it serves.

    With `parent`, end with that process, and obey its lines on stdin (see `cut_off`).

    Raises: PylogError, OSError: it cannot start. If the directory belongs to another broker or is in use, nothing was
    written there.
    """
    check_directory(config.log_dirs, config.broker_id, config.coordination)
    os.umask(os.umask(NOT_FOR_OTHERS) | NOT_FOR_OTHERS)
    # The system clears every page that it hands out again, which costs more than reading records into it.
    machine.keep_memory(MAPPED_BYTES_MIN, KEPT_BYTES)
    SYSTEM.files.descriptors.limit = open_files_max()
    garbage.begin()
    begin_logging(Path(config.log_dirs) / BROKER)
    for each in unguarded(config):
        logger.warning("listener %s: any client that reaches it can read and change everything: no login", each)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(config, say, parent))


def unguarded(config: BrokerConfig) -> Sequence[Listener]:
    """Return the listeners at which others on the network have all rights, and need no name for that."""
    if config.has_authorizer:
        return ()
    plain = [each for each in config.listening.bound if each.protocol is SecurityProtocol.PLAINTEXT]
    return [each for each in plain if not each.endpoint.is_loopback]


async def _serve(config: BrokerConfig, say: Callable[[str], None], parent: int | None) -> None:
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_over.set)
    beside: list[asyncio.Task[None]] = []
    if parent is not None:
        await CutOff(loop, say).listen(sys.stdin)
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
    await failure.wait()
    logger.error("the disk failed: this broker ends")
    is_over.set()


async def _watch(parent: int, is_over: asyncio.Event) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(PARENT_LOOK_S)
    is_over.set()


def main(arguments: list[str]) -> int:
    settings = dict(argument.split("=", 1) for argument in arguments)
    parent = int(settings.pop("parent"))
    try:
        run(BrokerConfig.from_properties(settings), _say, parent=parent)
    except (PylogError, OSError) as error:
        if logging.getLogger().handlers:  # otherwise nothing may be written in the directory
            logger.error("%s", error)
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
