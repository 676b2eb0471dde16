"""`pylog` on a store of its own."""

import pytest

from tests.support.commands import run_pylog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def pylog(path):
    """Run a command on the store at `path`; the result knows `.json` and `.lines`."""

    def run(*arguments, input=None, store=True):
        return run_pylog(*arguments, *(["--path", path] if store else []), input=input)

    return run
