"""The house stays as simple as it was built: see `tests.measures` for what is counted."""

import pytest

from tests import measures

MODULES = measures.sources()
IMPORTED = measures.imports(MODULES)


@pytest.mark.parametrize(
    ("package", "most"),
    [("logstore", (12, 8, 45)), ("replication", (14, 7, 45)), ("datasource", (9, 6, 16))],
)
def test_a_package_has_few_rooms_floors_and_arrows(package, most):
    found = measures.plan(package, MODULES, IMPORTED)
    assert all(count <= limit for count, limit in zip(found, most, strict=True)), (found, most)
