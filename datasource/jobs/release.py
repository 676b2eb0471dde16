"""`pylog transactions release`: what a dead driver of Spark left in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from logstore.cli.terminal import talk
from logstore.errors import InvalidRequestError, did_you_mean
from replication.cli.connecting import on_cluster

if TYPE_CHECKING:
    from replication.client.kafka_client import KafkaClient


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--decision-topic", metavar="TOPIC", help="The option decisionTopic of the writer, if it had one.")
@on_cluster
def release(client: KafkaClient, name: str, decision_topic: str | None, output: str) -> None:
    r"""End the transactions that a Spark driver left open under a name: commit the decided ones, abort the rest.

    \b
    $ pylog transactions release '~7' --bootstrap-server 127.0.0.1:9092

    The name is the id of the query, or txnId. `pylog transactions list` shows it in pylog-sink/task/NAME/…; a writer
    without a txnId has the name ~0, ~1 and so on. A driver that still runs under the name gets an error.
    """
    from datasource.connector.options import DECISION_TOPIC
    from datasource.topics.interface import TransactionSettings
    from datasource.topics.transactions.batches import ClusterTransactions
    from datasource.topics.transactions.state import names_in

    topic, listed = decision_topic or DECISION_TOPIC, client.list_transactions()
    if topic not in client.topics():
        raise InvalidRequestError(f"no topic {topic!r}: no Spark driver has written a decision there")
    names = names_in([each.transactional_id for each in listed or ()])
    if listed is not None and name not in names:
        raise InvalidRequestError(f"no Spark driver wrote as {name!r}{did_you_mean(name, names)}")
    settings = TransactionSettings(driver="", timeout_ms=60_000, decision_topic=topic)
    ClusterTransactions(client, settings).release(name)
    talk(f"released {name}")
