"""Batch writes of foreachBatch: which query a micro-batch is of, so that one that comes again is not written again."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame

from datasource.connector.checkpoints import QUERY_ID, directory_of, query_id_of
from datasource.connector.connect import is_connect
from logstore.errors import InvalidRequestError

_OURS = ("txnVersion", "topic", "checkpointLocation", "exactlyOnce")


def options_of(options: dict[str, object], topic: str, checkpoint: str | os.PathLike[str]) -> dict[str, str]:
    """Return the options of the writes, with topic and checkpoint. Raises: InvalidRequestError: one is set here."""
    given = {name: str(value) for name, value in options.items()}
    for name in given:
        if name.lower() in map(str.lower, _OURS):
            raise InvalidRequestError(f"option {name!r} is set here: remove it")
    if not isinstance(topic, str):
        raise InvalidRequestError(f"topic={topic!r}: give the name of a topic, as text")
    where = os.fspath(checkpoint)
    if ":/" not in where:
        where = os.path.abspath(where)  # noqa: PTH100 - links stay
    return given | {"topic": topic, "checkpointLocation": where}


def check_stream(stream: DataFrame, options: dict[str, str]) -> None:
    """Raise InvalidRequestError if it is no stream, or nothing will name its query."""
    if not stream.isStreaming:
        raise InvalidRequestError("this is no stream: begin with spark.readStream, or write it by df.write")
    if is_connect(stream.sparkSession) and not (directory_of(options["checkpointLocation"]) or "txnId" in options):
        raise InvalidRequestError(
            f"checkpoint {options['checkpointLocation']!r} is in no local or mounted directory, and over Spark Connect "
            "nothing else names the query: set option txnId to a name of your own"
        )


def query_of(frame: DataFrame, checkpoint: str) -> str:
    """Return the id of the query: its checkpoint has it, else this thread of Spark."""
    found = query_id_of(checkpoint)
    if not found and not is_connect(frame.sparkSession):
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
    if not found:
        raise InvalidRequestError("Spark does not say which query this is: set option 'txnId'")
    return found
