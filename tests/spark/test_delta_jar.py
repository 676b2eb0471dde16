"""With Delta Lake itself, where PYLOG_DELTA_JARS names its jars: what the stand-in of the other tests cannot show."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyspark
import pytest

from datasource.session import DELTA_JARS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get(DELTA_JARS), reason=f"no Delta jars: name them in {DELTA_JARS}"),
    pytest.mark.skipif(pyspark.__version__ != "4.2.0", reason="delta-spark 4.4 takes no PySpark above 4.2.0"),
]

SCRIPT = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
import logstore
from deltalake import DeltaTable
from datasource import spark_session
from datasource.jobs import delta_spark, retention, tiering
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

root = Path(sys.argv[1])
spark = spark_session(master="local[2]", delta=True)
spark.sparkContext.setLogLevel("OFF")

def tell(**facts):
    print("FACT", json.dumps(facts), flush=True)

def tier(**options):
    rows = tiering.run(spark, path=str(root), **options).collect()
    return [[row["status"], row["records"], row["note"]] for row in rows]

def append(topic, values, **columns):
    with logstore.open(root) as store:
        store.append(topic, pa.table({"value": values, **columns}))

def union():
    reader = spark.read.format("pylog").option("path", str(root)).option("subscribe", "t")
    return reader.option("includeTiered", True).load()

with logstore.open(root) as store:
    store.create_topic("t", config={"remote.storage.enable": "true", "retention.bytes": "1"})
    store.create_topic("typed")

# Times that INT96 can hold, and nanoseconds of 64 bits cannot; the session of a user writes INT96.
spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
FAR = [253_402_300_799_000, 0]  # 9999-12-31
append("t", ["a", "b"], timestamp=pa.array(FAR))
tell(int96=tier(topics="t"), union=sorted(r.timestamp.year for r in union().select("timestamp").collect()))
spark.conf.unset("spark.sql.parquet.outputTimestampType")
append("t", ["c"])
table = root / "tiered" / "t"
tell(micros=tier(topics="t"))
added = [f for f in DeltaTable(str(table)).file_uris()]
tell(types=sorted({str(pq.ParquetFile(f).schema.column(3).physical_type) for f in added}))

# A schema with NOT NULL and without a time zone.
append("typed", ['{"id": 1, "at": "2024-01-01T00:00:00"}', "bad"])
tell(ntz=tier(topics="typed", schema="id bigint not null, at timestamp_ntz"),
     read=spark.read.format("delta").load(str(root / "tiered" / "typed")).count())

# An error of Delta.
try:
    spark.range(1).write.format("delta").mode("append").save(str(table))
except (PySparkException, Py4JJavaError) as error:
    tell(said=str(delta_spark.failure(table, error)))

# Rows of a commit that Delta compacts right away.
spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")
spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
spark.conf.set("spark.databricks.delta.properties.defaults.autoOptimize.autoCompact", "true")
day = [1_700_000_000_000]
for i in range(2):
    append("t", [f"d{i}"], timestamp=day)
    tell(compacted=tier(topics="t"), files=len(DeltaTable(str(table)).file_uris()))
spark.conf.set("spark.databricks.delta.autoCompact.enabled", "false")

# RESTORE.
before = DeltaTable(str(table)).version()
spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1").collect()
entry = (table / "_delta_log" / f"{before + 1:020d}.json").read_text().splitlines()
tell(restore=[json.loads(line)["commitInfo"]["operationParameters"] for line in entry if "commitInfo" in line])
expired = retention.run(spark, path=str(root), topics="t").select("status", "note").collect()
tell(after=tier(topics="t"), retention=[list(row) for row in expired])
try:
    tell(union=union().count())
except Exception as error:
    tell(union=str(error).strip().splitlines()[0])
spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {before}").collect()
tell(mended=tier(topics="t"), union=union().count())
spark.stop()
"""


def test_delta_itself(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = done.stdout.replace("\r", "\n").splitlines()
    facts = [json.loads(line.partition("FACT ")[2]) for line in lines if "FACT " in line]
    assert len(facts) == 11, done.stderr
    int96, micros, types, ntz, said, *compacted, restored, after, lost, mended = facts
    assert int96 == {"int96": [["tiered", 2, None]], "union": [1970, 9999]}
    assert micros == {"micros": [["tiered", 1, None]]}
    assert types == {"types": ["INT64", "INT96"]}
    assert ntz == {"ntz": [["tiered", 1, None]], "read": 1}
    assert "t: [DELTA_METADATA_MISMATCH] A metadata mismatch was detected" in said["said"]
    assert compacted == [{"compacted": [["tiered", 1, None]], "files": files} for files in (4, 4)]
    assert restored == {"restore": [{"version": 1, "timestamp": None}]}
    for status, _, note in after["after"] + [[status, 0, note] for status, note in after["retention"]]:
        assert status == "failed"
        assert "taken back to version 1 by RESTORE" in note
    assert "taken back to version 1 by RESTORE" in lost["union"]
    assert mended == {"mended": [["nothing to do", 0, None]], "union": 5}
