"""The topics that Spark reads and writes, wherever they live.

From the ground up: `interface`, the questions to any topics; `timestamps`, in Spark's unit; `directory`, the topics of
one directory; `transactions`, how a batch is there once in a cluster; `cluster`, the topics of brokers; `locations`,
which of the two an option names; `latest`, a range as a table of latest values.
"""
