"""Who may import whom is written in pyproject.toml; here it is a test."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_import_follows_the_contracts():
    # In a process of its own: the linter sets up logging for all that runs beside it.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_module_has_a_place_in_a_layer():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    placed = {
        (container, name.strip(" ()"))
        for contract in contracts
        for container in contract.get("containers", ())
        for line in contract["layers"]
        for name in line.split("|")
    }
    containers = {container for container, _ in placed}
    for container in containers:
        folder = ROOT / container.replace(".", "/")
        found = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
        assert {name for name in found if name not in ("__init__", "__main__")} == {
            n for c, n in placed if c == container
        }


def test_every_module_is_on_the_map():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in ("logstore", "replication", "datasource"):
        tree = page[page.index(f"\n{package}\n") :].partition("```")[0]
        words = set(re.findall(r"\w+", tree))
        modules = {p.stem for p in (ROOT / package).glob("*.py")} | {
            p.parent.name for p in (ROOT / package).glob("*/*.py")
        }
        assert modules - {"__init__"} <= words
