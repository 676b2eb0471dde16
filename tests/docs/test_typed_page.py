"""docs/typed.md: its commands run, and print columns. Its Python: tests/spark/test_examples.py."""

import subprocess
from pathlib import Path

from tests.docs.test_readme import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "typed.md").read_text()


def test_the_commands_print_columns(tmp_path):
    [commands] = blocks("bash", PAGE)
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-3:] == ["user\tamount", "Ada\t3.00", '{"user":"Ada","_offset":0}']
