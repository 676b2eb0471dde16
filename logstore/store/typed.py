"""Records of a directory as rows of typed columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.records.tables import Tabular
    from logstore.schemas.choice import Typing
    from logstore.schemas.registry import Schemas


class _Store(Protocol):
    """The parts of a `LogStore` that are used here."""

    @property
    def schemas(self) -> Schemas: ...
    def topic(self, name: str) -> object: ...
    @property
    def read(self) -> Callable[..., Any]: ...


def read_typed(
    store: _Store, topic: str, partition: int | None, columns: Sequence[str] | None, typing: Typing, **options: Any
) -> pa.RecordBatchReader:
    """Return the records as rows of these columns, or of all; `options` and errors are those of `LogStore.read`.

    Raises: as `choice.chosen`; MisfitError (while iterating).
    """
    import pyarrow as pa

    from logstore.schemas.choice import chosen

    records = chosen(topic, typing, lambda: store.schemas, store.topic).only(columns)
    found = store.read(topic, partition=partition, columns=records.stored, **options)

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in found:
            place = partition
            if place is None:  # each batch is of one partition
                place = batch.column("partition")[0].as_py() if batch.num_rows else 0
            yield records.decode(batch, topic, place).rows

    return pa.RecordBatchReader.from_batches(records.schema, rows())


def as_records(store: _Store, topic: str, data: Tabular, typing: Typing) -> Tabular:
    """Return rows of typed columns as records to append; without any typing they are records. Raises: as `encoded`."""
    if not typing:
        return data
    from logstore.schemas.choice import encoded

    return encoded(topic, data, typing, lambda: store.schemas, store.topic)
