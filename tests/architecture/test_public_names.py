"""The face of a package: what `__all__` lists is there, sorted, and nothing else is public."""

import importlib
import types

import pytest

PACKAGES = ["logstore", "datasource", "pyspark_pylog"]


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_importable(package):
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_else_is_public(package):
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert public <= set(module.__all__)


@pytest.mark.parametrize("package", ["logstore", "replication", "datasource", "pyspark_pylog", "pytest_pylog"])
def test_a_package_says_what_it_is(package):
    assert importlib.import_module(package).__doc__
