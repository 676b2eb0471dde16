"""The program that is killed: a query that copies the topic `in` to the topic `out`, until a file says stop.

    python -m tests.spark.kills.query DIRECTORY

Exit status 0: everything that was in the topic when the file appeared is copied. Anything else is the query's failure.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Spark and its workers are started again and again: a JVM that compiles little, plans that are not compiled at all.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": False,
    "spark.sql.pyspark.jvmStacktrace.enabled": True,  # a failure says why
}


# A row at which a task attempt fails, by chance, once in the life of a JVM: of its three attempts a task may lose one
# like this and one to the killer.
VALUE = """if(cast(java_method('java.lang.Math', 'random') as double) < 0.00005
    and java_method('java.lang.System', 'setProperty', 'told', 'x') = 'null', raise_error('told to fail'), value)"""


def main(directory: str) -> None:
    from datasource import spark_session

    root = Path(directory)
    spark = spark_session(master="local[2,3]", app_name="kills", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.format("pylog").option("path", str(root / "log")).option("subscribe", "in")
    frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4000).load()
    rows = frame.selectExpr("key", f"{VALUE} value")
    sink = rows.writeStream.format("pylog").option("path", str(root / "log")).option("topic", "out")
    query = sink.option("checkpointLocation", str(root / "checkpoint")).start()
    (root / "started").touch()
    while not (root / "stop").exists():
        if query.awaitTermination(0.2):
            raise SystemExit("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
