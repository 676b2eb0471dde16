"""Cells in a kernel of their own, as a reader has it."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbclient
from nbformat.v4 import new_code_cell, new_notebook


def outputs(sources: Iterable[str], directory: Path, *, allow_errors: bool = False) -> list[list[dict[str, Any]]]:
    """Run these cells in an interpreter that is started in the directory; return what each shows, as Jupyter has it."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": str(directory)}},
        kernel_name="python3",
        allow_errors=allow_errors,
    )
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.create_kernel_manager().kernel_cmd = kernel
    client.execute()
    return [cell["outputs"] for cell in notebook.cells]


def execute(sources: Iterable[str], directory: Path) -> list[str]:
    """Run these cells; return what each printed. An error ends it."""
    return ["".join(str(each.get("text", "")) for each in cell) for cell in outputs(sources, directory)]
