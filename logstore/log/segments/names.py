"""The names of files and directories in a store: every suffix and every pattern.

::

    <topic>-<partition>/                         a partition
    <topic>-<partition>.<topic id>.deleted/      one that was deleted, until file.delete.delay.ms is over
    <20 digits>.log .index .timeindex            a segment; the number is its first offset
    <20 digits>.txnindex .txncheck               its aborted transactions, and their checksums
    <20 digits>.snapshot                         the producers when the log ended at this offset
    <segment file>.cleaned                       a rewritten segment that is not of the log yet
    <20 digits>.swap                             the decision to replace segments by it
    <segment file>.<milliseconds>.deleted        left the log at that time, and may still be read
    <segment file>.<milliseconds>.damaged        was put aside at that time, for an operator
"""

from __future__ import annotations

import re
from pathlib import Path

METADATA = "partition.metadata"
LOCK = ".lock"
CLEANER_LOCK = ".cleaner.lock"  # held by who compacts the partition; writers go on

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
DAMAGED_SUFFIX = ".damaged"
# Names of files that are on their way into the log, or out of it.
ASIDE_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)

LOG_FILE = re.compile(r"\d{20}\.log")
SNAPSHOT_FILE = re.compile(r"\d{20}\.snapshot")
TRANSACTION_FILE = re.compile(r"\d{20}\.txn(index|check)")
INDEX_FILE = re.compile(r"(\d{20})\.(index|timeindex|txnindex|txncheck)")
SEGMENT_FILE = re.compile(r"(?P<base_offset>\d{20})\.(?P<kind>log|index|timeindex|txnindex|txncheck|snapshot)")
DAMAGED_LOG_FILE = re.compile(r"(\d{20})\.log\.\d+\.damaged")
DELETED_FILE = re.compile(r"\d{20}\.\w+\.(\d+)\.deleted")

PARTITION = re.compile(r"(.+)-(0|[1-9]\d*)")
DELETED_PARTITION = re.compile(r"(.+)-(\d+)\.([\w-]{22})\.deleted")


def deleted_file(path: str, now_ms: int) -> str:
    return f"{path}.{now_ms}{DELETED_SUFFIX}"


def damaged_file(path: str, now_ms: int) -> str:
    return f"{path}.{now_ms}{DAMAGED_SUFFIX}"


def deleted_partition(root: Path, topic: str, partition: int, id: str) -> Path:
    # A file name has at most 255 bytes, and a topic name up to 249 of them.
    return root / f"{topic[:200]}-{partition}.{id}{DELETED_SUFFIX}"
