"""Promises of kernels beside their results: where compiled code is stored, and that any CPU will do."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

import numba
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logstore.records import compiled_code, kernels
from logstore.records.kernels import crc, native
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[4]

# One kernel stands for all, and it alone compiles in a second.
ONE = "from logstore.records.kernels.crc import crc32c\n"
PROBE = """
import json
import numpy as np
from crc32c import crc32c
from logstore.records import kernels
data = np.arange(9000, dtype=np.uint8)
assert kernels.crc32c(data.ctypes.data, len(data)) == crc32c(data)
stats = kernels.crc32c.stats
print(json.dumps({"compiled": sum(stats.cache_misses.values()), "loaded": sum(stats.cache_hits.values())}))
"""


@given(st.binary(max_size=2000), st.integers(0, 15), st.integers(1, 40))
def test_crc_is_that_of_the_library(data, skip, times):
    array = np.frombuffer(data * times + bytes(16), dtype=np.uint8)
    size = max(0, len(data) * times - skip)
    assert kernels.crc32c(array.ctypes.data + skip, size) == crc32c(array[skip : skip + size])


def start(root, **environment):
    """A fresh interpreter that imports the kernels of the package in `root`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "PYTHON"))}
    return subprocess.Popen(
        [sys.executable, "-B", "-c", PROBE],
        env=kept | {"PYTHONPATH": str(root)} | environment,
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


@only_long("an install, compiled twice")
@pytest.mark.slow
def test_a_closed_install_without_a_home_compiles_once_for_all(tmp_path):
    """Two processes compile at once, a third finds the result; nothing but a private directory is written."""
    install, temporary = tmp_path / "install", tmp_path / "tmp"
    temporary.mkdir()
    shutil.copytree(ROOT / "logstore", install / "logstore", ignore=shutil.ignore_patterns("__pycache__"))
    (install / "logstore/records/kernels/__init__.py").write_text(ONE)
    # A file where the directory would be: nobody can write there, not even root.
    (install / "logstore/records/kernels/__pycache__").write_bytes(b"")
    closed = {"HOME": "/dev/null", "TMPDIR": str(temporary)}
    both = [start(install, **closed) for _ in range(2)]
    assert all(r["compiled"] + r["loaded"] == 1 for r in map(result, both))
    third = result(start(install, **closed))
    assert (third["compiled"], third["loaded"]) == (0, 1)
    (private,) = temporary.iterdir()
    assert private.name == f"pylog-numba-{os.getuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@given(st.integers(0, 2**32 - 1), st.binary(min_size=8, max_size=8))
def test_tables_do_what_the_instruction_does(before, word):
    after = crc.table_step(before, int.from_bytes(word, "little", signed=True))
    assert after ^ 0xFFFFFFFF == crc32c(word, before ^ 0xFFFFFFFF)


@pytest.mark.parametrize("setting", ["CPU_NAME", "CPU_FEATURES"])
def test_a_cpu_that_numba_was_told_is_not_taken_for_this_one(setting, monkeypatch):
    monkeypatch.setattr(numba.config, setting, "generic")
    assert crc.crc_instruction() is None


def test_a_change_in_any_file_of_the_kernels_compiles_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "logstore/records/kernels", tmp_path / "kernels")
    monkeypatch.setattr(compiled_code, "SOURCES", tmp_path / "kernels")
    before = compiled_code.directory()
    assert compiled_code.directory() == before
    with (tmp_path / "kernels/varints.py").open("a") as file:
        file.write("# changed")
    assert compiled_code.directory() != before


def test_one_process_compiles_and_the_others_wait(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    place, began = compiled_code.directory(), []

    def take_turn():
        with compiled_code.turn(place, "one"):
            began.append(True)

    with compiled_code.turn(place, "one"):
        other = Thread(target=take_turn)
        other.start()
        other.join(0.2)
        assert other.is_alive()
        with compiled_code.turn(place, "another"):
            pass  # what has another name is not waited for
    other.join(10)
    assert began, "what the first one compiled is loaded"


def test_a_process_that_compiles_and_stands_still_is_not_waited_for_and_one_that_fails_hands_on(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    place = compiled_code.directory()
    with pytest.raises(ZeroDivisionError), compiled_code.turn(place, "one"):
        raise ZeroDivisionError
    with compiled_code.turn(place, "one"):
        monkeypatch.setattr(compiled_code, "WAIT_MS", 100)
        with compiled_code.turn(place, "one"):
            pass


def one_more(number):
    return number + 1


def test_each_kernel_wherever_it_stands_is_compiled_by_one_process_and_loaded_by_the_others(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "CACHE_DIR", compiled_code.directory())
    made = []
    other = Thread(target=lambda: made.append(native.kernel(native.I64(native.I64))(one_more)))
    with compiled_code.turn(native.CACHE_DIR, f"{__name__}.one_more"):
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join(60)
    made.append(native.kernel(native.I64(native.I64))(one_more))
    assert [kernel(1) for kernel in made] == [2, 2]
    assert [sum(kernel.stats.cache_hits.values()) for kernel in made] == [0, 1]


def test_compiled_code_is_kept_beside_the_sources(monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert compiled_code.directory().parent == ROOT / "logstore/records/kernels/__pycache__"


@pytest.fixture
def private(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"pylog-numba-{os.getuid()}"


def made():
    return compiled_code.private_directory()


def test_code_is_kept_in_a_directory_of_this_user_alone(private):
    assert made() == private
    assert made() == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_code_is_not_loaded_from_a_directory_that_others_may_write(private, tmp_path):
    private.mkdir()
    private.chmod(0o777)
    assert made() is None
    private.rmdir()
    (tmp_path / "elsewhere").mkdir()
    private.symlink_to(tmp_path / "elsewhere")
    assert made() is None
    private.unlink()
    private.write_bytes(b"")
    assert made() is None


def test_to_ask_whether_they_are_compiled_loads_no_numba(monkeypatch, tmp_path):
    code = "import sys; from logstore.records.compiled_code import is_kept; print(is_kept(), 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not compiled_code.is_kept()
