"""docs/pipelines.md: its Python is the template's. tests/spark/test_pipelines.py runs its commands."""

from pathlib import Path

from datasource.demo.project import TEMPLATE
from tests.docs.test_readme import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()


def test_the_functions_are_those_of_a_new_project():
    assert blocks("python", PAGE) == [(TEMPLATE / "transformations" / "orders.py").read_text()]
