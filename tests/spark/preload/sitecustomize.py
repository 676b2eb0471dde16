"""What every Python that a test starts runs first: one that Spark forks workers from loads what they need.

Spark has such a process per kind of worker: for tasks, and for each step in which a query is planned and committed.
Each worker would spend a second on it.
"""

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    kind = sys.orig_argv[-1]
    import_module(kind)
    import_module("datasource.connector.source")
    if kind.endswith((".worker", ".write_into_data_source")):  # the others need no kernels
        import_module("logstore.records.kernels")
