"""A flow whose progress a full refresh of a pipeline forgot is refused, before it writes its topic once more."""

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import logstore
from datasource import PylogDataSource
from logstore.errors import InvalidRequestError


@pytest.fixture
def begun(tmp_path):
    """Begin to write a stream with this checkpoint."""
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("thanks")
    schema = StructType([StructField("value", StringType())])

    def begin(checkpoint: str) -> None:
        options = {"path": str(tmp_path / "log"), "topic": "thanks", "checkpointLocation": checkpoint}
        PylogDataSource(options).streamWriter(schema, overwrite=False)

    return begin


def test_a_flow_that_was_reset_is_refused_until_one_of_its_checkpoints_is_removed(begun, tmp_path):
    flow = tmp_path / "_checkpoints" / "thanks" / "thank"
    (flow / "0").mkdir(parents=True)
    begun(f"file:{flow}/0")
    begun(f"file:{flow}/1")  # the flow before never began
    (flow / "0" / "metadata").write_text('{"id":"x"}')
    begun(f"file:{flow}/0")
    for prefix in ("", "file:", "file://"):
        with pytest.raises(InvalidRequestError, match=f"nothing was written.* remove {flow}/1, .* and remove {flow}/0"):
            begun(f"{prefix}{flow}/1")
    begun(f"file:{flow}/2")
    (flow / "0" / "metadata").unlink()
    begun(f"file:{flow}/1")


@pytest.mark.parametrize("name", ["thanks/thank/1", "_checkpoints/thank/1", "_checkpoints/thanks/thank/x1"])
def test_other_checkpoints_are_not_meant(name, begun, tmp_path):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name).with_name("0").mkdir()
    (tmp_path / name).with_name("0").joinpath("metadata").write_text('{"id":"x"}')
    begun(str(tmp_path / name))
