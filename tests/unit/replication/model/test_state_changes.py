"""The lines of state-change.log are worded as Kafka 0.9's, and can be read back."""

import pytest

from replication.model.cluster import LeaderAndIsr, Replica, TopicPartition
from replication.model.state_changes import ControllerLines, RequestLines, format_line

BAR = TopicPartition("bar", 0)
STATE = LeaderAndIsr(2, 1, (2, 3), 1, 4)
CONTROLLER = ControllerLines(3, 1)
BROKER = RequestLines(2, 3, 1, 4)

# Written by a real Kafka 0.9.0.1.
RECORDED = {
    "TRACE Controller 3 epoch 1 changed partition [bar,0] state from OnlinePartition to OfflinePartition": (
        CONTROLLER.partition_changed(BAR, "OnlinePartition", "OfflinePartition")
    ),
    "TRACE Controller 3 epoch 1 started leader election for partition [bar,0]": CONTROLLER.election_started(BAR),
    "TRACE Controller 3 epoch 1 elected leader 2 for Offline partition [bar,0]": CONTROLLER.leader_elected(BAR, 2),
    "TRACE Controller 3 epoch 1 changed partition [bar,0] from OfflinePartition to OnlinePartition with leader 2": (
        CONTROLLER.partition_online(BAR, "OfflinePartition", 2)
    ),
    "TRACE Controller 3 epoch 1 changed state of replica 1 for partition [bar,0] from OnlineReplica to "
    "OfflineReplica": (CONTROLLER.replica_changed(Replica(BAR, 1), "OnlineReplica", "OfflineReplica")),
    "TRACE Controller 3 epoch 1 sending become-leader LeaderAndIsr request "
    "(Leader:2,ISR:2,3,LeaderEpoch:1,ControllerEpoch:1) to broker 2 for partition [bar,0]": (
        CONTROLLER.telling_leadership(BAR, STATE, 2)
    ),
    "TRACE Controller 3 epoch 1 sending become-follower LeaderAndIsr request "
    "(Leader:2,ISR:2,3,LeaderEpoch:1,ControllerEpoch:1) to broker 3 for partition [bar,0]": (
        CONTROLLER.telling_leadership(BAR, STATE, 3)
    ),
    "TRACE Controller 3 epoch 1 sending UpdateMetadata request "
    "(Leader:2,ISR:2,3,LeaderEpoch:1,ControllerEpoch:1) to broker 2 for partition bar-0": (
        CONTROLLER.telling_metadata(BAR, STATE, 2)
    ),
    "TRACE Broker 2 received LeaderAndIsr request (LeaderAndIsrInfo:(Leader:2,ISR:2,3,LeaderEpoch:1,"
    "ControllerEpoch:1),ReplicationFactor:3),AllReplicas:1,2,3) correlation id 4 from controller 3 epoch 1 "
    "for partition [bar,0]": BROKER.received(BAR, STATE, (1, 2, 3)),
    "TRACE Broker 2 handling LeaderAndIsr request correlationId 4 from controller 3 epoch 1 starting the "
    "become-leader transition for partition [bar,0]": BROKER.handling(BAR, "leader"),
    "TRACE Broker 2 completed LeaderAndIsr request correlationId 4 from controller 3 epoch 1 for the "
    "become-leader transition for partition [bar,0]": BROKER.completed(BAR, "leader"),
    "WARN Broker 2 ignoring LeaderAndIsr request from controller 3 with correlation id 4 epoch 1 for partition "
    "[bar,0] since its associated leader epoch 1 is old. Current leader epoch is 1": BROKER.ignored(BAR, 1, 1),
    "TRACE Broker 2 cached leader info (LeaderAndIsrInfo:(Leader:2,ISR:2,3,LeaderEpoch:1,ControllerEpoch:1),"
    "ReplicationFactor:3),AllReplicas:1,2,3) for partition [bar,0] in response to UpdateMetadata request sent by "
    "controller 3 epoch 1 with correlation id 4": BROKER.cached(BAR, STATE, (1, 2, 3)),
    "TRACE Broker 2 handling stop replica (delete=true) for partition [bar,0]": (
        BROKER.stopping(BAR, delete=True, done=False)
    ),
    "TRACE Broker 2 finished handling stop replica (delete=false) for partition [bar,0]": (
        BROKER.stopping(BAR, delete=False, done=True)
    ),
}


@pytest.mark.parametrize("text", RECORDED)
def test_a_line_is_worded_as_recorded(text):
    change = RECORDED[text]
    assert f"{change.level} {change.message}" == text


@pytest.mark.parametrize("change", [*RECORDED.values(), BROKER.ignored_controller(2)])
def test_a_line_has_its_time_level_and_logger(change):
    line = format_line(1_795_230_987_564, change)
    assert line == f"[2026-11-21 03:16:27,564] {change.level} {change.message} (state.change.logger)"
