"""`pylog schemas` on a cluster; `logstore.cli.schemas` has the options, and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from logstore.cli.schemas import (
    do_check,
    do_delete,
    do_level,
    do_register,
    show_inferred,
    show_list,
    show_one,
)
from replication.cli.connecting import connected

if TYPE_CHECKING:
    from replication.tools.connecting import KafkaClient


def _of_cluster(act: Callable[..., None]) -> Callable[..., None]:
    @connected
    def call(client: KafkaClient, **options: Any) -> None:
        act(client.schemas, **options)

    return call


list_schemas = _of_cluster(show_list)
get = _of_cluster(show_one)
register = _of_cluster(do_register)
check = _of_cluster(do_check)
delete = _of_cluster(do_delete)
level = _of_cluster(do_level)


@connected
def infer(client: KafkaClient, topic: str, max_messages: int, output: str) -> None:
    show_inferred(_values(client, topic, max_messages), output)


def _values(client: KafkaClient, topic: str, max_values: int) -> Iterator[bytes | None]:
    for partition, extent in client.extents(topic).items():
        batches = client.read(topic, partition, extent.start, extent.end, columns=["value"])
        yield from islice((value for batch in batches for value in batch.column(0).to_pylist()), max_values)
