"""State of one's own per key (transformWithState): an alarm when a sensor's value rises three times in a row."""

import sys
import tempfile

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"


class Rising(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("last", "value double, rises int")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803  Spark's names
        for frame in rows:
            for value in frame.sort_values("offset")["value"]:
                last, rises = self.state.get() if self.state.exists() else (value, 0)
                rises = rises + 1 if value > last else 0
                self.state.update((float(value), rises))
                if rises == 3:
                    yield pd.DataFrame({"key": key, "value": [f"{value:g}"]})

    def close(self) -> None:
        pass


with logstore.open(log) as store:
    store.create_topic("sensors")
    store.create_topic("alarms")
    readings = [("attic", v) for v in (20, 21, 23, 26)] + [("cellar", v) for v in (12, 13, 11, 12)]
    store.append("sensors", [{"key": sensor, "value": str(value)} for sensor, value in readings])

spark = datasource.spark_session(**{"spark.sql.shuffle.partitions": 2})  # little data
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
rows = spark.readStream.format("pylog").options(path=log, subscribe="sensors", startingOffsets="earliest").load()
sensors = rows.selectExpr("string(key) AS key", "double(string(value)) AS value", "offset")
alarms = sensors.groupBy("key").transformWithStateInPandas(
    Rising(), outputStructType="key string, value string", outputMode="Append", timeMode="None"
)
writer = alarms.writeStream.format("pylog").options(path=log, topic="alarms", checkpointLocation=checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()

found = spark.read.format("pylog").options(path=log, subscribe="alarms").load()
found.selectExpr("string(key) AS sensor", "string(value) AS value").show()
