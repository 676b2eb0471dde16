"""pyproject.toml has the allowed imports, each package the purpose of its modules: here both are tests."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOPS = ("logstore", "replication", "datasource")
PACKAGES = sorted(path.parent for top in TOPS for path in (ROOT / top).rglob("__init__.py"))


def parts(folder):
    found = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
    return {name for name in found if not name.startswith("__")}


def test_every_import_follows_the_contracts():
    # In a process of its own: the linter sets up logging for all that runs beside it.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_an_install_brings_is_used_by_the_product():
    needed = {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}
    trees = (ast.parse(path.read_text()) for top in TOPS for path in (ROOT / top).rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert needed - imported == {"pandas"}  # Spark's


def test_every_room_has_a_place_in_a_layer():
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    placed = {
        container: {name.strip() for line in contract["layers"] for name in line.split("|")}
        for contract in contracts
        for container in contract.get("containers", ())
    }
    assert {container: parts(ROOT / container.replace(".", "/")) for container in placed} == placed


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_names_its_parts(package):
    says = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert parts(package) <= set(re.findall(r"`(?:\w+\.)*(\w+)`", says))
    assert len(says.splitlines()) <= 20
