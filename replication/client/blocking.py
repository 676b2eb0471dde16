"""Producers and consumers for code without an event loop: each call waits for that of the asynchronous one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from logstore.records.tables import Tabular
from replication.client.client_loop import End
from replication.client.consumer import AsyncConsumer
from replication.client.membership import Tps
from replication.client.metadata import Extent
from replication.client.producer import AsyncProducer, AsyncTransactionalProducer
from replication.model.cluster import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Run = Callable[[Coroutine[Any, Any, Any]], Any]  # has it done in the client's event loop, and waits
Wrapped = TypeVar("Wrapped")
Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


class Closing(ABC):
    """A context manager that closes itself at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End it."""


class Blocking(Closing, Generic[Wrapped]):
    """Every call of it waits for that of the asynchronous one; `end` closes that."""

    def __init__(self, wrapped: Wrapped, run: Run, end: End) -> None:
        self._wrapped: Wrapped = wrapped
        self._run = run
        self._end = end

    def __repr__(self) -> str:
        return repr(self._wrapped).removeprefix("Async")

    def close(self) -> None:
        """Forward to the asynchronous `close`."""
        self._run(self._end())


def waiting(
    call: Callable[Concatenate[Wrapped, Arguments], Coroutine[Any, Any, Found]],
) -> Callable[Concatenate[Blocking[Wrapped], Arguments], Found]:
    """The same call, of a class that wraps the asynchronous one, and waits for it."""

    @wraps(call)
    def run(self: Blocking[Wrapped], /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Found:
        return self._run(call(self._wrapped, *arguments, **named))  # type: ignore[no-any-return]

    return run


class Producer(Blocking[AsyncProducer]):
    """`AsyncProducer` for code without an event loop: from any thread; made by `KafkaClient.producer`."""

    def __exit__(self, *error: object) -> None:
        self.flush()
        self.close()

    def send(self, topic: str, data: Tabular) -> Future[dict[int, Extent]]:
        """Forward to `AsyncProducer.send`; callbacks of the future run in the client's thread."""

        async def send() -> Future[dict[int, Extent]]:
            future: Future[dict[int, Extent]] = Future()
            (await self._wrapped.send(topic, data)).add_done_callback(lambda done: _copy(done, future))
            return future

        return self._run(send())  # type: ignore[no-any-return]

    flush = waiting(AsyncProducer.flush)


class TransactionalProducer(Blocking[AsyncTransactionalProducer]):
    """`AsyncTransactionalProducer` for code without an event loop: from any thread."""

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Forward to `AsyncTransactionalProducer.partitions`."""
        return self._wrapped.partitions

    append = waiting(AsyncTransactionalProducer.append)
    flush = waiting(AsyncTransactionalProducer.flush)


class Consumer(Blocking[AsyncConsumer]):
    """`AsyncConsumer` for code without an event loop, for one thread at a time; made by `KafkaClient.consumer`.

    `on_assign` and `on_revoke` are called in a thread of their own while `poll` waits; they may use the consumer.
    """

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches without end, as `poll` gives them."""
        while True:
            if (rows := self.poll()) is not None:
                yield rows

    poll = waiting(AsyncConsumer.poll)
    commit = waiting(AsyncConsumer.commit)

    @property
    def assignment(self) -> Tps:
        """Forward to `AsyncConsumer.assignment`."""
        return self._wrapped.assignment

    def position(self, tp: TopicPartition) -> int:
        """Forward to `AsyncConsumer.position`."""
        return self._wrapped.position(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Forward to `AsyncConsumer.seek`."""
        self._run(done(lambda: self._wrapped.seek(tp, offset)))

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Forward to `AsyncConsumer.pause`."""
        self._run(done(lambda: self._wrapped.pause(tps)))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Forward to `AsyncConsumer.resume`."""
        self._run(done(lambda: self._wrapped.resume(tps)))


def _copy(done: asyncio.Future[Any], future: Future[Any]) -> None:
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


async def done(what: Callable[[], None]) -> None:
    """Do it in the event loop."""
    what()
