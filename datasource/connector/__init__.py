"""The data source that Spark drives: `spark.read.format("pylog")` and its three relatives.

From the ground up: `option_parsing`; `places`, which topics, and from where to where, in the words of options;
`option_names`, `typed_options` and `options`, what each means; `offsets`, where that is in the log, and how far a
stream has read, as JSON in its checkpoint; `planning`, ranges of offsets packed into Spark tasks; `server_paths`, the
paths that a server takes; `sail`, a Spark without Java, and how it differs; `garbage`, what is spared its collection;
`one_line`, how an error reaches Spark's user; `checkpoints`; `workers`, how fast they start; `idle`, how long a stream
waits; `registered`, the columns of topics; `typed`, records as columns; `tally`, how many do not fit; `reader`,
`refused`, `writer`; `counts`, a read by headers alone; `source`; `connect`, sessions of Spark Connect; `views`, topics
as tables of SQL; `written`, where a run's last batch begins; `batch_writes`, of which query a micro-batch is;
`upserts`, the last state of each key; `sifting`, rows and dead letters together; `lags`, how far behind a query is;
`looks`, what its events say of it, and `observing`, who listens to them.

A stream's batch is what its offsets say: planned from them alone, it is the same whenever Spark asks again.
"""
