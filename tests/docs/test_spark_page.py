"""docs/spark.md: its table is the table of the code."""

import re
from pathlib import Path

from datasource.connector.observing import HELP
from datasource.connector.option_names import OPTIONS
from datasource.connector.places import STORAGE
from datasource.schema import COLUMNS, HEADERS
from replication.client.registry_settings import NAMES
from replication.client.security import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
FROM_SPARK = {"checkpointLocation", "queryName"}


def test_every_option_is_in_the_table_with_its_place():
    section = PAGE[PAGE.index("\n## Options\n") : PAGE.index("\n## Over a cluster")]
    rows = dict(re.findall(r"^\| `([\w.-]+)` \| ([^|]+?) \|", section, re.MULTILINE))
    elsewhere = FROM_SPARK | {f"kafka.{name}" for name in SETTINGS}  # docs/client.md has these
    elsewhere |= {name for name in OPTIONS if name.startswith(STORAGE)}  # docs/operations.md
    elsewhere |= NAMES  # docs/schemas.md
    code = {name: {str(use) for use in uses} for name, uses in OPTIONS.items() if name not in elsewhere}
    assert {name: set(text.split(", ")) for name, text in rows.items()} == code
    assert all(f"`{name}`" in PAGE for name in FROM_SPARK)


def test_every_metric_of_an_observer_is_in_the_table():
    assert set(re.findall(r"`(pylog_query_\w+)`", PAGE)) == HELP.keys()


def test_every_column_is_named():
    assert all(f"`{name}`" in PAGE for name in (*COLUMNS, HEADERS))
