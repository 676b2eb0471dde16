"""The hooks of pre-commit and the workflow run the commands of the Makefile and of .ci, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pre_commit_runs_targets_of_the_makefile_with_the_tools_that_are_installed():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: ([^,\n]+)", text) == ["make lint", "make types"]
    assert re.findall(r"repo: (.+)", text) == ["local"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"lint", "types"} <= set(targets)


def test_the_workflow_runs_the_ci_script_and_nothing_else():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"run: (.+)", text) == ["bash .ci/run"]
    assert int(re.search(r"timeout-minutes: (\d+)", text)[1]) >= 60
    least = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f'python-version: "{least}"' in text


def test_editors_indent_and_wrap_as_ruff_does():
    text = (ROOT / ".editorconfig").read_text()
    width = re.search(r"^line-length = (\d+)", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"max_line_length = {width}" in text
    assert "[Makefile]\nindent_style = tab" in text
