"""Time, chance and the disk come in through `Env`: nothing but logstore/env reaches for them."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p
    for package in ("logstore", "replication", "datasource", "pyspark_pylog", "pytest_pylog")
    for p in (ROOT / package).rglob("*.py")
)

BANNED_MODULES = {"time", "random", "secrets", "mmap"}
BANNED_CALLS = {"open", "input", "print", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
BANNED_OS = {"os." + name for name in (
    "fsync", "fdatasync", "open", "read", "write", "pread", "pwrite", "rename", "replace", "unlink", "remove",
    "truncate",     "ftruncate", "listdir", "scandir", "stat", "mkdir", "makedirs", "urandom", "getrandom",
)}  # fmt: skip
BANNED_METHODS = {
    "read_text",
    "write_text",
    "read_bytes",
    "write_bytes",
    "touch",
    "unlink",
    "mkdir",
    "iterdir",
    "glob",
}

# file -> what it may do all the same, and why.
ALLOWED = {
    **dict.fromkeys(f"logstore/env/{name}.py" for name in ("__init__", "descriptors", "files", "locks", "machine")),
    "logstore/records/compiled_code.py": {
        "path.mkdir()",
        "(path / name).touch()",
    },  # where numba keeps compiled code, not the log's data
    "replication/tools/performance.py": {"time"},  # a send may take less than the clock's millisecond
    "replication/protocol/framing.py": {"mmap"},  # memory, of no file
    "replication/replica/storage/blocked_time.py": {
        "time",
        "os.open",
        "os.pread",
    },  # what the kernel counts of a thread
}


def test_only_env_reaches_time_chance_and_disk():
    found = {}
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        allowed = ALLOWED.get(name, ())
        if allowed is not None and (more := set(reaches(ast.parse(path.read_text()))) - set(allowed)):
            found[name] = sorted(more)
    assert not found, "take it from Env"


def reaches(tree: ast.AST):
    """The banned names that a module imports or calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in BANNED_MODULES)
            case ast.ImportFrom(module=module) if module in BANNED_MODULES:
                yield module
            case ast.Call(func=func):
                called = ast.unparse(func)
                if called in BANNED_CALLS or called in BANNED_OS:
                    yield called
                elif isinstance(func, ast.Attribute) and func.attr in BANNED_METHODS and is_path(func.value):
                    yield f"{called}()"


def is_path(value: ast.expr) -> bool:
    """Something that is plainly a pathlib path: `path`, `directory`, `Path(…)`, `(a / b)`."""
    text = ast.unparse(value)
    return (
        text.startswith("Path(")
        or isinstance(value, ast.BinOp)
        or text.rsplit(".", 1)[-1].strip("_") in ("path", "directory")
    )


def test_the_check_sees_what_it_bans():
    code = "import time\nfrom random import choice\nopen('x')\nos.fsync(3)\n(a / b).read_text()\ndatetime.now()"
    assert set(reaches(ast.parse(code))) == {
        "time",
        "random",
        "open",
        "os.fsync",
        "(a / b).read_text()",
        "datetime.now",
    }
