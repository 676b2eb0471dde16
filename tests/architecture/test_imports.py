"""Packages stay as simple as they were built: `tests.measures` says how this is counted."""

import pytest

from tests import measures


@pytest.fixture(scope="module")
def imported():
    return measures.imports(measures.sources())


@pytest.mark.parametrize(
    ("package", "most"),
    [("logstore", (13, 8, 48)), ("replication", (15, 7, 47)), ("datasource", (9, 6, 16))],
)
def test_a_package_has_few_parts_levels_and_imports(package, most, imported):
    found = measures.plan(package, measures.sources(), imported)
    assert all(count <= limit for count, limit in zip(found, most, strict=True)), (found, most)
