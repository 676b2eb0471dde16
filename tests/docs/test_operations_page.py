"""docs/operations.md: its Python runs and prints what it is meant to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repeats import only_long

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.mark.slow
@only_long("a cluster of its own")
def test_the_cluster_of_the_page_loses_a_broker_and_goes_on(tmp_path, variables):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (example,) = (block for block in blocks if "LocalCluster" in block)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=variables | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.splitlines() == ["0 records on their way, brokers up: [1, 3]", "[1, 2, 3]"], done.stderr
    assert list(tmp_path.glob("pylog-cluster-*")) == []
