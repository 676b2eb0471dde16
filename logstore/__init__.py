"""The log engine of pylog: partitions of append-only segment files, in Kafka's format, in one directory.

::

    import logstore

    with logstore.open("data") as store:
        store.create_topic("orders", partitions=6)
        store.append("orders", table)
        table = store.read("orders", partition=0).read_all()

Its rooms, from the ground up: `errors`, and `worker`, a thread that waits for work; `env`, the only door to clock and
disk, `config`, the settings of a topic, and `progress`; `checkpoint`, small durable files, and `records`, batches and
their bytes; `log`, one partition; `maintenance`, which changes its old segments; `store`, a directory of topics;
`tools`, what commands return; `cli`.

Importing this package loads neither numba nor pyarrow: they come with the first append or read.
"""

import sys

if sys.platform == "win32":
    raise ImportError("pylog does not run on Windows itself: run `wsl --install`, and pip install it in WSL")

from logstore.config import LogConfig
from logstore.errors import (
    BatchConflictError,
    CorruptLogError,
    DiskFullError,
    FailedStoreError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    PylogError,
    ReadOnlyStoreError,
    RecordTooLargeError,
    StaleLogError,
    StorageError,
    StoreError,
    StoreLockedError,
    TopicExistsError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.store.description import TopicDescription
from logstore.store.description import TopicDescription as TopicInfo
from logstore.store.reading import OffsetRange
from logstore.store.store import LogStore, recover
from logstore.store.store import open_store as open

__version__ = "0.9.0.dev0"  # of the whole distribution; in development until CHANGELOG.md has a release of that number

__all__ = [
    "BatchConflictError",
    "CorruptLogError",
    "DiskFullError",
    "FailedStoreError",
    "InvalidConfigError",
    "InvalidRecordError",
    "InvalidRequestError",
    "InvalidTopicError",
    "LogConfig",
    "LogStore",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "OutOfOrderSequenceError",
    "ProducerFencedError",
    "PylogError",
    "ReadOnlyStoreError",
    "RecordTooLargeError",
    "StaleLogError",
    "StorageError",
    "StoreError",
    "StoreLockedError",
    "TopicDescription",
    "TopicExistsError",
    "TopicInfo",
    "TransactionAbortedError",
    "TransactionStateError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "open",
    "recover",
]
