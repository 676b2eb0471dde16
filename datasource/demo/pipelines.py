"""`pylog pipelines`: parses and prints; the work is that of `project`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from datasource.demo.project import write_project
from logstore.cli.terminal import talk

NEEDS = {"grpc": "grpcio", "grpc_status": "grpcio-status", "yaml": "pyyaml", "zstandard": "zstandard"}


@click.group()
def pipelines() -> None:
    """Begin a declarative pipeline of Spark on topics.

    \b
    $ pylog pipelines init shop
    """


@pipelines.command("init")
@click.argument("directory", metavar="NAME", type=click.Path(path_type=Path))
def init(directory: Path) -> None:
    """Write a pipeline that runs at once: a topic is read, tables are filled, another topic is written.

    \b
    $ pylog pipelines init shop
    $ cd shop && spark-pipelines run --properties-file spark.conf

    NAME is a directory that does not exist yet. spark-pipelines is a command
    of PySpark that needs more packages: pip install "pyspark[pipelines]".
    """
    write_project(directory)
    if missing := [package for module, package in NEEDS.items() if find_spec(module) is None]:
        talk(f'spark-pipelines needs {", ".join(missing)}: pip install "pyspark[pipelines]"')
    click.echo(f"{directory} is a pipeline: cd {directory} && spark-pipelines run --properties-file spark.conf")
