"""`pylog top` on a cluster; `logstore.cli.top` has the options, and shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logstore.cli.top import watch
from replication.cli.connecting import connected

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient


@connected
def top(client: KafkaClient, checkpoints: tuple[Path, ...], every: int, once: bool, output: str) -> None:
    from replication.tools.top import look_at

    watch(lambda readers, failed: client.run(look_at, readers, failed), client.where, checkpoints, every, once, output)
