"""Who may import whom is written in pyproject.toml, what a room is for in its package: here both are tests."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    path.parent for top in ("logstore", "replication", "datasource") for path in (ROOT / top).rglob("__init__.py")
)


def rooms(folder):
    found = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
    return {name for name in found if not name.startswith("__")}


def test_every_import_follows_the_contracts():
    # In a process of its own: the linter sets up logging for all that runs beside it.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_room_has_a_place_in_a_layer():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    placed = {
        container: {name.strip() for line in contract["layers"] for name in line.split("|")}
        for contract in contracts
        for container in contract.get("containers", ())
    }
    assert {container: rooms(ROOT / container.replace(".", "/")) for container in placed} == placed


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_names_its_rooms(package):
    says = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert rooms(package) <= set(re.findall(r"`(?:\w+\.)*(\w+)`", says))
    assert len(says.splitlines()) <= 20
