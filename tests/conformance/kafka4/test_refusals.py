"""The tools of a Kafka 4.4 are refused within seconds what brokers do not serve, and say so."""

import subprocess
from pathlib import Path

import pytest

from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import java_program, run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a JVM")]
JAVA = Path(__file__).parent / "java/AdminRefusals.java"
NOT_SERVED = (
    "describeMetadataQuorum", "addRaftVoter", "removeRaftVoter", "unregisterBroker", "unregisterController",
    "createDelegationToken", "renewDelegationToken", "expireDelegationToken", "describeDelegationToken",
    "alterReplicaLogDirs", "describeStreamsGroups",
)  # fmt: skip
# Clients ask for the rest of streams groups with the APIs of all groups.
OTHERWISE = {
    **dict.fromkeys(("describeAcls", "createAcls", "deleteAcls"), "SecurityDisabledException"),
    "updateFeatures": "InvalidUpdateVersionException",
    **dict.fromkeys(("describeUserScramCredentials", "alterUserScramCredentials"), "none"),
    **dict.fromkeys(("describeClientQuotas", "alterClientQuotas"), "none"),
    "listStreamsGroupOffsets": "none",
    "alterStreamsGroupOffsets": "UnknownTopicOrPartitionException",
    "deleteStreamsGroupOffsets": "GroupIdNotFoundException",
    "deleteStreamsGroups": "GroupIdNotFoundException",
    "clientInstanceId": "IllegalStateException",
}


def test_an_admin_is_refused_what_is_not_served_within_seconds(tmp_path):
    with brokers_in_process(tmp_path / "brokers", (1, 2), offsets_topic_num_partitions=1) as ours:
        command = java_program(JAVA, tmp_path / "classes", ours.bootstrap)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    told = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    assert told == dict.fromkeys(NOT_SERVED, "UnsupportedVersionException") | OTHERWISE


def test_client_metrics_have_no_settings(tmp_path):
    tool = "org.apache.kafka.tools.ClientMetricsCommand"
    with brokers_in_process(tmp_path, (1, 2)) as ours:
        of = ("--bootstrap-server", ours.bootstrap)
        assert run_tool(tool, *of, "--list").stdout.split() == []
        for words in (("--alter", "--interval", "1000"), ("--delete",)):
            refused = run_tool(tool, *of, *words, "--name", "m", check=False)
            assert refused.returncode == 1
            assert "resource 16 'm'" in refused.stdout + refused.stderr, refused
