"""The project of a new declarative pipeline: the files of `pipeline`, and a log with records."""

from __future__ import annotations

from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

import logstore
from logstore.checkpoint import write_atomic
from logstore.env import SYSTEM
from logstore.env.failures import mapped
from logstore.errors import InvalidRequestError

TEMPLATE = Path(__file__).parent / "pipeline"
FILES = ("spark-pipeline.yml", "spark.conf", "transformations/orders.py")
ORDERS = [("Ada", "tea"), ("Bob", "milk"), ("Ada", "cake")]
# These mean something in YAML, in an address, in a property file or in the name of a Derby database.
SPECIAL = " #%:;?\"'\\${}[]*"


def write_project(directory: Path) -> None:
    """Write a pipeline into a new directory, with a log that holds the topics `orders`, with records, and `thanks`.

    All of it is there, or nothing.

    Raises: InvalidRequestError: the directory is there already, and stays as it is, or its path has a character that
    Spark takes for something else.
    """
    root = directory.absolute()
    if special := sorted(set(str(root)) & set(SPECIAL)):
        raise InvalidRequestError(f"{root}: choose a path without {' '.join(map(repr, special))}, for Spark's sake")
    if directory.exists():
        raise InvalidRequestError(f"{directory} exists; choose another name, or remove it")
    SYSTEM.files.mkdir(root.parent)
    with mapped("create", root), TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as room:
        made = Path(room, root.name)
        for name in FILES:
            text = Template(SYSTEM.files.read_all(TEMPLATE / name).decode()).substitute(name=root.name, root=root)
            SYSTEM.files.mkdir((made / name).parent)
            write_atomic(SYSTEM, made / name, text.encode(), durable=False)
        with logstore.open(made / "data") as store:
            store.create_topic("orders", partitions=3)
            store.create_topic("thanks", partitions=3)
            store.append("orders", [{"key": who, "value": what} for who, what in ORDERS])
        SYSTEM.files.rename(made, root)
