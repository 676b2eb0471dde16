"""A stream of numbers in JSON that a test drives as Spark does, without Spark."""

import json
import pickle

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from datasource.connector.options import read_options
from datasource.connector.reader import StreamReader
from logstore.schemas import ddl


class Query:
    """Reads `orders` as `n int`; `place` are the options that say where it is. Each task runs twice."""

    def __init__(self, place, **options):
        given = place | {"startingOffsets": "earliest", "value.format": "json"}
        chosen = {} if "subscribePattern" in options else {"subscribe": "orders"}
        self.options = read_options(given | chosen | options, streaming=True)
        self.ends = []
        self.restart()

    def restart(self):
        self.reader = StreamReader(self.options, pa.schema(ddl.parse("n int")))
        self.reader.prepareForTriggerAvailableNow()

    def trigger(self):
        """The rows of a batch; None: there is none."""
        start = self.ends[-1] if self.ends else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, ReadAllAvailable())))
        if self.ends and end == start:
            return None
        self.ends.append(end)
        reader, rows = pickle.loads(pickle.dumps(self.reader)), []
        for task in self.reader.partitions(start, end):
            for _ in range(2):
                once = [row for batch in reader.read(task) for row in batch["n"].to_pylist()]
            rows += once
        return rows

    @property
    def count(self):
        return self.ends[-1]["misfits"]["count"]
