"""One registry of schemas serves all tests of a worker: a start takes ten seconds."""

import pytest

from tests.support.registry import Registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    with Registry(tmp_path_factory.mktemp("registry")) as running:
        yield running
