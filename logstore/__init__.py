"""The log engine of pylog: partitions of append-only segment files, in Kafka's format, in one directory.

::

    import logstore

    with logstore.open("data") as store:
        store.create_topic("orders", partitions=6)
        store.append("orders", table)
        table = store.read("orders", partition=0).read_all()

Its rooms, from the ground up: `errors`, and `worker`, a thread that waits for work; `env`, the only door to clock and
disk, `config`, the settings of a topic, and `progress`; `checkpoint`, small durable files, and `records`, batches and
their bytes; `schemas`, columns of records; `log`, one partition; `maintenance`, which changes its old segments;
`store`, a directory of topics; `tools`, what commands return; `cli`.

Importing this package loads no more than its name: each part comes with its first use, numba and pyarrow with the first
append or read. So commands and Spark's many short-lived processes load what they need.
"""

import importlib
import sys
import typing

if sys.platform == "win32":
    raise ImportError("pylog does not run on Windows itself: run `wsl --install`, and pip install it in WSL")

if typing.TYPE_CHECKING:
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
        UnknownProducerError,
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
    "UnknownProducerError",
    "UnknownTopicError",
    "open",
    "recover",
]

_PLACES = {
    "LogConfig": ("logstore.config", "LogConfig"),
    "LogStore": ("logstore.store.store", "LogStore"),
    "OffsetRange": ("logstore.store.reading", "OffsetRange"),
    "TopicDescription": ("logstore.store.description", "TopicDescription"),
    "TopicInfo": ("logstore.store.description", "TopicDescription"),
    "open": ("logstore.store.store", "open_store"),
    "recover": ("logstore.store.store", "recover"),
}


if not typing.TYPE_CHECKING:  # a type checker knows the names, and finds those that are wrong

    def __getattr__(name):
        """Import a public name, or a module of this package, with its first use."""
        try:
            if name not in __all__:
                return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        module, attribute = _PLACES.get(name, ("logstore.errors", name))
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
