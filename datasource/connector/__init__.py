"""The data source that Spark drives: `spark.read.format("pylog")` and its three relatives.

From the ground up: `option_parsing` and `options` (every option; `startingOffsets` is one); `offsets`, how far a
stream has read, as JSON in its checkpoint; `planning`, ranges of offsets packed into Spark tasks; `selection`, from
the user's offsets and times to offsets per partition; `reader`, `writer`; `source`.

A stream's batch is what its offsets say: planned from them alone, it is the same whenever Spark asks again.
"""
