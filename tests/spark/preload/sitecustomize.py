"""What every Python that a test starts runs first: one that Spark forks workers from loads what they need.

Spark has such a process per kind of worker: for tasks, and for each step in which a query is planned and committed.
Each worker would spend a second on it, and another one on compiling PySpark from the zip file that Spark names first.
"""

import sys
from importlib import import_module

if any(argument.startswith("pyspark.") for argument in sys.orig_argv):
    sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
if "pyspark.daemon" in sys.orig_argv:
    kind = sys.orig_argv[-1]
    import_module(kind)
    import_module("datasource.connector.source")
    if kind == "pyspark.worker":  # the others need no kernels
        import_module("logstore.records.arrow")
        import_module("pandas")  # PySpark's own Arrow code does
