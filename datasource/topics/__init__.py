"""The topics that Spark reads and writes, wherever they live.

From the ground up: `directory`, what is asked of any topics, and those of one directory; `transactions`, how a batch is
there once in a cluster; `cluster`, the topics of brokers; `locations`, which of the two an option names.
"""
