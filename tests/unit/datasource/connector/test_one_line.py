"""An error of pylog is one line where Spark sends it to Java, and nowhere else is anything hidden."""

import io
import logging
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from pyspark.serializers import read_int
from pyspark.util import handle_worker_exception

from datasource.connector.one_line import HIDE, one_line
from logstore import InvalidRequestError


@one_line
def refuse():
    """Give the reason."""
    raise InvalidRequestError("do that instead")


@one_line
def rows():
    yield 1
    raise InvalidRequestError("do that instead")


@one_line
def fail():
    raise KeyError("a bug")


@pytest.fixture
def spark_process(monkeypatch):
    """This process looks like one that Spark started, until the test ends."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv(HIDE, "")


def sent(call):
    """The text that Java gets for the error of the call."""
    out = io.BytesIO()
    try:
        call()
    except (InvalidRequestError, KeyError) as error:
        handle_worker_exception(error, out)
    out.seek(0)
    assert read_int(out) == -2
    return out.read(read_int(out)).decode()


@pytest.mark.parametrize("call", [refuse, lambda: list(rows())], ids=["method", "generator"])
def test_an_error_of_pylog_is_one_line(spark_process, call):
    assert sent(call) == "logstore.errors.InvalidRequestError: do that instead\n"


def test_a_bug_keeps_its_traceback(spark_process):
    assert "in fail" in sent(fail)


def test_a_process_that_goes_on_hides_nothing(monkeypatch):
    monkeypatch.delenv(HIDE, raising=False)
    assert "in refuse" in sent(refuse)
    assert HIDE not in os.environ


def test_the_traceback_is_in_the_log(spark_process, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(InvalidRequestError):
        refuse()
    assert "do that instead" in caplog.text
    assert "in refuse" in caplog.text


def test_the_method_stays_what_spark_looks_at():
    assert (refuse.__name__, refuse.__doc__) == ("refuse", "Give the reason.")
    assert next(rows()) == 1
