"""TransactionCalls: the calls of a KafkaClient about transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from logstore.errors import PylogError
from replication.client import transactions
from replication.client.blocking import TransactionalProducer
from replication.client.client_loop import ClientLoop
from replication.client.cluster import Cluster
from replication.client.producer import AsyncTransactionalProducer
from replication.client.transactions import BegunProducer, DescribedTransaction, ListedTransaction, Pair, Transaction

TRANSACTION_TIMEOUT_MS = 60_000  # Kafka's default


class TransactionCalls:
    """A part of `KafkaClient`, which has the loop and the cluster."""

    _loop: ClientLoop
    _cluster: Cluster
    _timeout_ms: int

    @contextmanager
    def transaction(
        self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> Iterator[TransactionalProducer]:
        """A transaction of this id: committed at the end of the `with` block, aborted if that raises.

        A producer that had one of the same id open before is fenced, and its transaction is aborted.

        Raises: as `init_producer` and `end_transaction`; KafkaError: rows were not appended, and all are aborted.
        """
        pair = self.init_producer(transactional_id, timeout_ms=timeout_ms).pair
        with self.transactional_producer(transactional_id, pair) as producer:
            try:
                yield producer
                producer.flush()
            except BaseException:
                with suppress(PylogError):  # the block's error counts; the transaction times out, or is ended already
                    self.end_transaction(transactional_id, pair, commits=False)
                raise
            if producer.partitions:
                self.end_transaction(transactional_id, pair, commits=True)

    def transactional_producer(self, transactional_id: str, pair: Pair) -> TransactionalProducer:
        """Appends to the transaction of this pair, which it neither begins nor ends. It ends with this client."""
        transaction = Transaction(transactional_id, pair)
        producer = AsyncTransactionalProducer(self._cluster, transaction, delivery_timeout_ms=2 * self._timeout_ms)
        return TransactionalProducer(producer, self._loop.run, self._loop.ending(producer.close))

    def init_producer(
        self, transactional_id: str, *, timeout_ms: int, is_two_phase: bool = False, keeps: bool = False
    ) -> BegunProducer:
        """Forward to `transactions.init_producer`."""
        begun = transactions.init_producer(
            self._cluster, transactional_id, timeout_ms=timeout_ms, is_two_phase=is_two_phase, keeps=keeps
        )
        return self._loop.run(begun)

    def end_transaction(self, transactional_id: str, pair: Pair, *, commits: bool) -> None:
        """Forward to `transactions.end_transaction`."""
        self._loop.run(transactions.end_transaction(self._cluster, transactional_id, pair, commits=commits))

    def describe_transactions(self, ids: Collection[str]) -> dict[str, DescribedTransaction] | None:
        """Forward to `transactions.describe_transactions`."""
        return self._loop.run(transactions.describe_transactions(self._cluster, ids))

    def list_transactions(self, *, states: Iterable[str] = ()) -> list[ListedTransaction] | None:
        """Forward to `transactions.list_transactions`."""
        return self._loop.run(transactions.list_transactions(self._cluster, states=states))
