"""Recovery of a store: what the only process on the directory does first, and `pylog recover`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from logstore.checkpoint import clear_mark, is_marked
from logstore.errors import PylogError, StoreError
from logstore.log.recovery import RecoveryReport
from logstore.progress import Progress, no_progress
from logstore.store.log_manager import LogManager
from logstore.store.transactions.coordinator import Transactions

logger = logging.getLogger(__name__)


def take_over(logs: LogManager, transactions: Transactions) -> None:
    """Recover the store unless it was closed cleanly, finish deletions, apply retention. Only while alone."""
    is_clean = logs.log_dir.is_clean
    if not is_clean:
        for report in _recover_logs(logs):
            if isinstance(report, PylogError):
                logs.is_recovered = False
                # The other partitions are fine; who writes to this one gets the error again.
                logger.error("not recovered: %s", report)
    try:
        if is_clean:
            transactions.complete_or_abort()
        else:
            transactions.recover()
    except PylogError as error:
        logger.error("transactions are not ended: %s", error)
    logs.topics.finish_deletions()
    logs.expire(
        (info.name, p) for info in logs.topics.catalog.topics() if info.config.expires for p in range(info.partitions)
    )


def recover(logs: LogManager, transactions: Transactions, progress: Progress) -> list[RecoveryReport]:
    logs.log_dir.mark_dirty()
    found = list(_recover_logs(logs, progress))
    errors = [report for report in found if isinstance(report, PylogError)]
    errors += logs.topics.recover()
    logs.is_recovered = not errors
    # A topic that nobody can use does not affect others, unless an fsync failed, perhaps of its own files.
    for error in errors:
        if not isinstance(error, StoreError) or is_marked(logs.env, logs.log_dir.path):
            raise error
    if logs.log_dir.is_alone:
        # Before transactions are ended, which writes to logs that are whole now.
        clear_mark(logs.env, logs.log_dir.path)
    transactions.recover(mend=True)
    if errors:
        raise errors[0]
    return [report for report in found if not isinstance(report, PylogError)]


def _recover_logs(logs: LogManager, progress: Progress = no_progress) -> Iterator[RecoveryReport | PylogError]:
    """Recover every partition; one that cannot be recovered is an error in its place."""
    partitions, catalog = [], logs.topics.catalog
    for name in catalog.names():
        try:
            partitions += [(name, p) for p in range(catalog.topic(name).partitions)]
        except StoreError as error:
            yield error
    for done, (topic, partition) in enumerate(partitions):
        progress(done, len(partitions))
        try:
            yield logs.log_dir.reserve.despite_full_disk(logs.log(topic, partition).recover)
        except PylogError as error:
            yield error
    progress(len(partitions), len(partitions))
