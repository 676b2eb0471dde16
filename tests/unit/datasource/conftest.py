"""Stores that a process keeps open for Spark belong to one test."""

import pytest

from tests.support.inside import close_stores


@pytest.fixture(autouse=True)
def no_open_stores():
    yield
    close_stores()
