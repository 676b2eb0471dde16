"""Cells in a kernel of their own, as a reader has it."""

import sys
from collections.abc import Iterable
from pathlib import Path

import nbclient
from nbformat.v4 import new_code_cell, new_notebook


def execute(sources: Iterable[str], directory: Path) -> list[str]:
    """Run these cells in an interpreter that is started in the directory; return what each printed."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(directory)}}, kernel_name="python3"
    )
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.create_kernel_manager().kernel_cmd = kernel
    client.execute()
    return ["".join(str(output.get("text", "")) for output in cell["outputs"]) for cell in notebook.cells]
