"""Who may import whom is written in pyproject.toml; here it is a test."""

import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_every_import_follows_the_contracts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert status == 0, capsys.readouterr().out


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
