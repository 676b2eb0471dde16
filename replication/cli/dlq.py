"""`pylog dlq` on a cluster; `logstore.cli.dlq` has the options, and prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logstore.cli.dlq import do_replay, do_show, show_list
from replication.cli.connecting import connected

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient


def _of_cluster(act: Callable[..., None]) -> Callable[..., None]:
    @connected
    def call(client: KafkaClient, **options: Any) -> None:
        from replication.tools.dead_letters import ClusterDeadLetters

        act(ClusterDeadLetters(client), **options)

    return call


list_letters = _of_cluster(show_list)
show_letters = _of_cluster(do_show)
replay = _of_cluster(do_replay)
