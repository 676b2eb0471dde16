"""URLs of tables in object stores, and storage options: what is refused, and what nobody may see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from datasource.connector.options import read_options
from datasource.delta.storage import TableBucket, TableDirectory, storage_of
from datasource.delta.storage_options import NAMES, OPTIONS, StorageOptions, explained, one_line, storage_options
from logstore.errors import InvalidConfigError
from tests.support.commands import run_pylog
from tests.support.object_store import storage_value

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-secret/of=mine"}
TIERED = {"kafka.bootstrap.servers": "one:9092", "subscribe": "a", "includeTiered": "true"}


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("s3:/lake/x", "table s3://lake/x: write s3://lake/x"),
        ("S3://lake/x", "table s3://lake/x: write s3://lake/x"),
        ("s3a://lake/x", "table s3a://lake/x: write s3://lake/x"),
        ("gcs://lake/x", "table gcs://lake/x: write gs://lake/x"),
        ("abfss://c@account.dfs.core.windows.net/x", "write az://CONTAINER/path"),
        ("http://lake/x", "http:// is no object store here; write s3://, gs:// or az://, or a directory"),
        ("hdfs://lake/x", "hdfs:// is no object store here"),
        ("s3://lake", "name a bucket and a path in it: s3://BUCKET/path"),
        ("s3://lake/", "name a bucket and a path in it: s3://BUCKET/path"),
        ("s3:///x", "name a bucket and a path in it: s3://BUCKET/path"),
        ("s3://lake/x?versionId=1", "without '@', '?', '#', '%' and blanks"),
        ("s3://lake/a b", "without '@', '?', '#', '%' and blanks"),
        ("s3://user:a-secret@lake/x", "secrets go into storage options"),
    ],
)
def test_a_table_that_is_no_url_of_ours_is_refused_with_a_hint(table, line):
    with pytest.raises(InvalidConfigError, match=re.escape(line)) as caught:
        storage_of(table)
    assert "\n" not in str(caught.value)
    assert "a-secret" not in str(caught.value)
    with pytest.raises(InvalidConfigError, match=re.escape(line)):
        read_options({**TIERED, "tieredTable": table}, streaming=False)


def test_places_are_what_they_are_called(tmp_path):
    assert storage_of("gs://lake/x/") == TableBucket("gs://lake/x")
    assert storage_of(f"file:{tmp_path}/x") == storage_of(f"file://{tmp_path}/x") == TableDirectory(tmp_path / "x")
    assert storage_of("x", base=tmp_path) == TableDirectory(tmp_path / "x")
    assert storage_of("x") == TableDirectory(Path.cwd() / "x")
    lake = storage_of("s3://lake/x")
    assert str(lake.beside("__dlq")) == "s3://lake/x__dlq"
    assert lake.relative_to(storage_of("s3://lake/x")) == "."
    assert (lake / "y").relative_to(lake) == "y"
    assert lake.beside("y").relative_to(lake) is None
    assert lake.relative_to(storage_of(tmp_path)) is None is storage_of(tmp_path).relative_to(lake)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"AWS_SECRET_ACESS_KEY": "a-secret"},
            "AWS_SECRET_ACESS_KEY is not known; did you mean 'AWS_SECRET_ACCESS_KEY'",
        ),
        ({"fs.s3a.access.key": "a-secret"}, "fs.s3a.access.key is not known"),
        ({"AWS_REGION": "a", "aws_region": "b"}, "aws_region is given twice"),
        ({"AWS_SECRET_ACCESS_KEY": " "}, "AWS_SECRET_ACCESS_KEY: it is empty"),
        ({"AWS_ALLOW_HTTP": "a-secret"}, "AWS_ALLOW_HTTP: true or false"),
        ({"TIMEOUT": "5"}, "TIMEOUT: a time like 5s"),
        ({"MAX_RETRIES": "many"}, "MAX_RETRIES: a whole number"),
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "AWS_ENDPOINT_URL: a URL that begins with http:// or https://"),
        ({"AWS_ENDPOINT_URL": "http://me:a-secret@host"}, "AWS_ENDPOINT_URL: a URL that begins with"),
    ],
)
def test_an_option_that_is_not_known_or_has_no_such_value_is_refused_without_its_value(given, line):
    with pytest.raises(InvalidConfigError, match=re.escape(f"storage option {line}")) as caught:
        storage_options(given)
    assert "a-secret" not in str(caught.value)


def test_options_of_another_kind_of_store_are_refused():
    with pytest.raises(InvalidConfigError, match=r"AWS_ACCESS_KEY_ID means nothing to gs://; there are GOOGLE_"):
        storage_of("gs://lake/x", storage_options(KEYS))
    with pytest.raises(InvalidConfigError, match="AWS_ACCESS_KEY_ID: the table is a directory; a table in an object"):
        storage_of("/lake/x", storage_options(KEYS))
    assert storage_of("az://lake/x", storage_options({"timeout": "7s"})).options["timeout"] == "7s"


def test_every_option_is_taken_by_its_stores_in_either_case_and_reaches_deltalake():
    for scheme, names in OPTIONS.items():
        for name in names:
            value = storage_value(name)
            for written in (name, name.lower()):
                place = storage_of(f"{scheme or 's3'}://lake/x", storage_options({written: value}))
                assert place.options[name.lower()] == value
                options = {**TIERED, "tieredTable": str(place), f"storage.{written}": value}
                assert read_options(options, streaming=True).tables.storage == place.storage


def test_the_page_has_every_option():
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_storage_options_need_tiered_records_to_read():
    with pytest.raises(InvalidConfigError, match=r"'storage\.aws_region' is for tables in an object store: it needs"):
        read_options({"path": "/log", "subscribe": "a", "storage.aws_region": "x"}, streaming=False)
    with pytest.raises(InvalidConfigError, match=r"unknown option 'storage\.aws_regoin'; did you mean 'storage\.aws_r"):
        read_options({"path": "/log", "subscribe": "a", "storage.aws_regoin": "a-secret"}, streaming=False)
    with pytest.raises(InvalidConfigError, match="means nothing to gs://"):
        read_options({**TIERED, "tieredTable": "gs://lake/x", "storage.aws_region": "x"}, streaming=False)


def test_no_text_shows_a_secret(monkeypatch):
    options = storage_options(KEYS)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig-in-the-environment")
    place = TableBucket("s3://lake/x", options)
    error = OSError(
        "Generic S3 error\n \x1b[31m↳\x1b[0m Error performing GET http://h/lake/x?sig=abc%20d&se=1 in 3ms, after 2"
        "\n  \x1b[31m↳\x1b[0m a-secret/of=mine, AKIDEXAMPLE or sig-in-the-environment"
    )
    assert one_line(error, options) == "GET http://h/lake/x: ***, *** or ***"
    assert (
        one_line(OSError("no answer of http://me:a-secret@and@proxy:3128/, so"))
        == "no answer of http://proxy:3128/, so"
    )
    assert "Connection refused" in one_line(OSError("Connection refused"), storage_options({"AWS_ACCESS_KEY_ID": "on"}))
    for text in (repr(options), repr(place), str(place), repr(StorageOptions()), explained(error, "s3", options)):
        assert not re.search("a-secret|AKID|sig", text)
    assert "AWS_SECRET_ACCESS_KEY" in repr(place)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("<Error><Code>NoSuchBucket</Code></Error>", "the bucket does not exist"),
        ("401 Unauthorized", "access is denied: check AWS_ACCESS_KEY_ID"),
        ("an error occurred while loading credentials", "no credentials: give AWS_ACCESS_KEY_ID"),
        ("Connection refused (os error 111)", "the object store cannot be reached"),
        ("operation timed out", "the object store cannot be reached"),
        ("SignatureDoesNotMatch", "the credentials are wrong"),
    ],
)
def test_an_error_begins_with_what_to_do(said, hint):
    found = explained(
        OSError(f"Generic S3 error\n Error performing GET http://h/x in 3ms\n {said}"), "s3", StorageOptions()
    )
    assert found.startswith(hint)
    assert "\n" not in found


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--storage-option", "AWS_REGION"], "--storage-option AWS_REGION has no value: write NAME=VALUE"),
        (["--storage-option", "AWS_REGION=a", "--storage-option", "AWS_REGION=b"], "AWS_REGION is given twice"),
        (["--storage-option", "AWS_REGOIN=a"], "AWS_REGOIN is not known; did you mean 'AWS_REGION'"),
        (["--table", "s3a://lake/x"], "table s3a://lake/x: write s3://lake/x"),
        (["--table", "/lake/x", "--storage-option", "AWS_REGION=a"], "AWS_REGION: the table is a directory"),
    ],
)
def test_the_command_refuses_before_it_looks_for_topics(tmp_path, arguments, line):
    ran = run_pylog("tier", "--path", tmp_path, *arguments)
    assert (ran.code, line in ran.err) == (2, True), ran.err


def test_a_file_of_options_with_a_bad_line_shows_nothing_of_it(tmp_path):
    (tmp_path / "f").write_text("AWS_REGION=a\na-secret\n")
    ran = run_pylog("tier", "--path", tmp_path, "--table", "s3://lake/x", "--storage-config", tmp_path / "f")
    assert ran.code == 2
    assert "line 2: write NAME=VALUE, each name once" in ran.err
    assert "a-secret" not in ran.err
