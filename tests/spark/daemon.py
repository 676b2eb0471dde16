"""The daemon that Spark forks its Python workers from, with pylog loaded: else each worker spends a second on that."""

from pyspark.daemon import manager

import logstore.records.kernels  # noqa: F401
from datasource.connector import source  # noqa: F401

if __name__ == "__main__":
    manager()
