"""The messages between brokers: the bytes of Kafka 3.0, spelt out; and back."""

import io
import uuid

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from replication.errors import ErrorCode
from replication.protocol import interbroker as ib
from replication.protocol.kio_reader import read

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID_HEX = "00112233445566778899aabbccddeeff"

LEADER_AND_ISR = ib.LeaderAndIsrRequest(
    controller_id=3, controller_epoch=7, broker_epoch=258,
    topic_states=(ib.LeaderAndIsrTopic(topic_name="t", topic_id=ID, partition_states=(ib.LeaderAndIsrPartition(
        partition_index=1, controller_epoch=7, leader=2, leader_epoch=5, isr=(2, 1), zk_version=9,
        replicas=(2, 1), is_new=True),)),),
    live_leaders=(ib.LiveLeader(broker_id=2, host_name="h", port=9092),),
)  # fmt: skip
STOP_REPLICA = ib.StopReplicaRequest(
    controller_id=3, controller_epoch=7, broker_epoch=258,
    topic_states=(ib.StopReplicaTopic(topic_name="t", partition_states=(
        ib.StopReplicaPartition(partition_index=1, leader_epoch=-2, delete_partition=True),)),),
)  # fmt: skip
UPDATE_METADATA = ib.UpdateMetadataRequest(
    controller_id=3, controller_epoch=7, broker_epoch=258,
    topic_states=(ib.UpdateMetadataTopic(topic_name="t", topic_id=ID, partition_states=(ib.UpdateMetadataPartition(
        partition_index=1, controller_epoch=7, leader=2, leader_epoch=5, isr=(2,), zk_version=9,
        replicas=(2, 1), offline_replicas=(1,)),)),),
    live_brokers=(ib.UpdateMetadataBroker(id=2, endpoints=(
        ib.UpdateMetadataEndpoint(port=9092, host="h", listener="PLAINTEXT"),), rack=None),),
)  # fmt: skip
HEAD = "00000003 00000007 0000000000000102"
AS_HEX = [
    (LEADER_AND_ISR, f"{HEAD} 02 02 0274 {ID_HEX} 02 00000001 00000007 00000002 00000005 03 00000002 00000001"
                     " 00000009 03 00000002 00000001 01 01 01 00 00 02 00000002 0268 00002384 00 00"),
    (STOP_REPLICA, f"{HEAD} 02 0274 02 00000001 fffffffe 01 00 00 00"),
    (UPDATE_METADATA, f"{HEAD} 02 0274 {ID_HEX} 02 00000001 00000007 00000002 00000005 02 00000002 00000009"
                      " 03 00000002 00000001 02 00000001 00 00"
                      " 02 00000002 02 00002384 0268 0a504c41494e54455854 0000 00 00 00 00"),
    (ib.ControlledShutdownRequest(broker_id=2, broker_epoch=258), "00000002 0000000000000102 00"),
    (ib.LeaderAndIsrResponse(error_code=ErrorCode.NONE, topics=(ib.LeaderAndIsrTopicError(
        topic_id=ID, partition_errors=(ib.LeaderAndIsrPartitionError(
            partition_index=1, error_code=ErrorCode.KAFKA_STORAGE_ERROR),)),)),
     f"0000 02 {ID_HEX} 02 00000001 0038 00 00 00"),
    (ib.StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, partition_errors=()), "004d 01 00"),
    (ib.UpdateMetadataResponse(error_code=ErrorCode.NONE), "0000 00"),
    (ib.ControlledShutdownResponse(error_code=ErrorCode.NONE, remaining_partitions=(
        ib.RemainingPartition(topic_name="t", partition_index=1),)), "0000 02 0274 00000001 00 00"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "as_hex"), AS_HEX, ids=lambda value: type(value).__name__)
def test_bytes_are_those_of_kafka_and_come_back(message, as_hex):
    raw, out = bytes.fromhex(as_hex), io.BytesIO()
    entity_writer(type(message))(out, message)
    assert out.getvalue().hex() == raw.hex()
    assert read(type(message), raw, 0) == (message, len(raw))


def test_error_codes_are_those_of_kio():
    for code in ErrorCode:
        assert KioErrorCode(code.value).name.upper() == code.name
