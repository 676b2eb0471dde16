import pytest

from datasource.connector.server_paths import check_paths
from logstore import InvalidConfigError

OF_A_SERVER = {"SPARK_JOB_ARTIFACT_UUID": "9495412f", "PWD": "/srv"}


@pytest.mark.parametrize("name", ["path", "tieredtable", "kafka.ssl.ca.location", "Path"])
def test_a_relative_path_is_refused_in_a_session_of_a_server(name):
    with pytest.raises(InvalidConfigError, match=r"must be absolute over Spark Connect.*write '/srv/data/log'"):
        check_paths({name: "./data/log"}, OF_A_SERVER)


@pytest.mark.parametrize("path", ["/data/log", "file:/data/log", "s3://bucket/log", " ", ""])
def test_other_paths_are_not(path):
    check_paths({"path": path, "tieredTable": path, "topic": "data"}, OF_A_SERVER)


@pytest.mark.parametrize("environment", [{}, {"SPARK_JOB_ARTIFACT_UUID": "default"}])
def test_a_classic_session_has_relative_paths(environment):
    check_paths({"path": "data"}, environment)
