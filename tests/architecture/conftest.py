"""Nothing here makes garbage that has to be collected."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Python 3.11 cannot parse while it parses (gh-106905): what collected garbage says with a traceback is parsed."""
    gc.disable()
    yield
    gc.enable()
