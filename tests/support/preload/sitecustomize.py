"""Every Python that a test starts runs this first: a process of ours loads what it needs once, and nothing else.

Spark has a process per kind of worker, from which it forks them: for tasks, and for each step in which a query is
planned and committed. Each worker would spend a second on loading pylog, and another one on compiling PySpark from the
zip file that Spark names first. kio loads Hypothesis where that is installed: half of what `pylog cluster` takes.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

if any(argument.startswith("from logstore.cli import") for argument in sys.orig_argv):
    sys.modules["hypothesis"] = None  # as where it is not installed
if any(argument.startswith("pyspark.") for argument in sys.orig_argv):
    sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
if "pyspark.daemon" in sys.orig_argv:
    kind = sys.orig_argv[-1]
    import_module(kind)
    import_module("datasource.connector.source")
    if kind == "pyspark.worker":  # the others need no kernels
        import_module("logstore.records.encoding")
        import_module("pandas")  # PySpark's own Arrow code does
if root := os.environ.get("PYLOG_KILLS"):
    import_module("tests.spark.kills.points").watch(Path(root))
