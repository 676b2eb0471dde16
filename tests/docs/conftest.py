"""The processes that these tests start must see this checkout, installed or not."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def variables() -> dict[str, str]:
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {name: text for name, text in os.environ.items() if name != "PYLOG_PATH"} | {"PYTHONPATH": python_path}
