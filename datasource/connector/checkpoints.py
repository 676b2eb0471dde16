"""The checkpoint of a query in a local or mounted directory: whose it is, and the input of a batch."""

from __future__ import annotations

import hashlib
import json
import re

from logstore.env import SYSTEM

QUERY_ID = "sql.streaming.queryId"  # the local property of a task, and of the thread, of a query


def directory_of(checkpoint: str | None) -> str:
    """Return the absolute path of a checkpoint; "" if it is not in a directory of this machine."""
    found = re.match(r"(?:file:/*(?=/))?(/.*)", checkpoint or "")
    return found[1] if found else ""


def origin_of(checkpoint: str | None, batch_id: int) -> str:
    """Return the hash of the micro-batch's entry in the query's offset log; "" if it cannot be read here.

    Spark writes the entry once, before the batch first runs, so a replay of the same input has the same one.
    """
    entry = _read(checkpoint, f"offsets/{batch_id}")
    return hashlib.sha256(entry).hexdigest() if entry else ""


def query_id_of(checkpoint: str | None) -> str:
    """Return the id that Spark gave the query of this checkpoint; "" if it cannot be read here."""
    try:
        return str(json.loads(_read(checkpoint, "metadata") or b"{}").get("id", ""))
    except ValueError:
        return ""


def _read(checkpoint: str | None, name: str) -> bytes:
    """Return a file of a checkpoint in a local directory, else nothing."""
    directory = directory_of(checkpoint)
    if not directory:
        return b""
    try:
        return SYSTEM.files.read_all(f"{directory}/{name}")
    except OSError:
        return b""
