import pytest

from datasource.connector.connect import remote_of, warn_of_two_packages
from logstore import InvalidConfigError

REMOTE = {"spark.remote": "sc://here:15002"}


def test_a_remote_comes_from_the_settings_or_the_environment(monkeypatch):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert remote_of(None, {}) == ""
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert remote_of(None, {}) == "sc://there"
    assert remote_of(None, REMOTE) == REMOTE["spark.remote"]
    assert remote_of("local[2]", {}) == ""  # what the call says goes before what the environment says
    assert remote_of(None, {"spark.master": "local[2]"}) == ""


@pytest.mark.parametrize(("master", "conf"), [("local[2]", REMOTE), (None, REMOTE | {"spark.master": "local[2]"})])
def test_a_remote_and_a_master_are_refused(master, conf):
    with pytest.raises(InvalidConfigError, match=r"'master' and 'spark\.remote' are both given"):
        remote_of(master, conf)


def test_one_line_warns_of_pyspark_beside_pyspark_client(monkeypatch, tmp_path, recwarn):
    warn_of_two_packages()
    assert not recwarn
    (tmp_path / "pyspark_client-4.2.0.dist-info").mkdir()
    (tmp_path / "pyspark_client-4.2.0.dist-info" / "METADATA").write_text("Name: pyspark-client\nVersion: 4.2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"and pyspark-client 4\.2\.0 are both installed, in one folder") as found:
        warn_of_two_packages()
    assert "\n" not in str(found[0].message)
