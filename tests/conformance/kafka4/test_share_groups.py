"""Our own members of share groups, on a real Kafka 4.4 of three brokers."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from replication.client.kafka_client import KafkaClient
from replication.errors import ErrorCode, KafkaError
from tests.docs.test_readme import blocks
from tests.support import share_letters, share_life, share_tools
from tests.support.repeats import only_long
from tests.support.share_members import ShareGroup, members_and_leaders_die

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]


@pytest.fixture
def client(three_brokers):
    with KafkaClient(three_brokers.bootstrap) as client:
        yield client


def test_each_kind_of_acknowledgement_acts(client):
    client.create_topic("kinds", replicas=3)
    share_life.each_kind_of_acknowledgement_acts(client, "kinds", "kinds-share")


def test_a_member_that_is_late_does_not_know_that_another_one_has_accepted(client):
    client.create_topic("late", replicas=3)
    share_life.a_member_that_is_late_does_not_know_that_another_one_has_accepted(client, "late", "late-share")


def test_polls_and_ends_of_blocks_accept_or_release(client):
    client.create_topic("polls", replicas=3)
    share_life.polls_and_ends_of_blocks_accept_or_release(client, "polls", "polls-share")


def test_an_expelled_member_joins_again_and_says_so(client, caplog):
    client.create_topic("expelled", replicas=3)
    share_life.an_expelled_member_joins_again(client, "expelled", "expelled-share", caplog)


def test_a_group_of_another_type_is_refused_at_once(client):
    client.create_topic("classic", replicas=3)
    client.append("classic", [{"value": "a"}])
    with client.consumer("classic", "classic-group", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(60_000) is not None
    with (
        client.share_consumer("classic", "classic-group") as member,
        pytest.raises(KafkaError, match="is not a share group") as refused,
    ):
        member.poll(60_000)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    share_tools.bad_input_has_one_clear_line(client, "classic", "classic-group")


def test_consume_accepts_what_it_prints(client):
    client.create_topic("printed", replicas=3)
    share_tools.consume_accepts_what_it_prints(client, "printed", "printers")


def test_groups_are_listed_described_reset_and_deleted(client):
    client.create_topic("shared-described", partitions=2, replicas=3)
    share_tools.groups_are_listed_described_reset_and_deleted(client, "shared-described", "describers")


@pytest.mark.parametrize("fate", ["killed", "hangs"])
def test_a_member_whose_leader_and_coordinator_is_gone_ends_in_time(client, three_brokers, caplog, fate):
    group = f"group-{fate}"
    topic, leader = share_life.led_by_its_coordinator(client, group, fate)
    pid = three_brokers.pid(leader)
    try:
        lose = (lambda: three_brokers.kill(leader)) if fate == "killed" else (lambda: os.kill(pid, signal.SIGSTOP))
        share_life.a_member_ends_in_time(client, topic, group, lose, caplog)
    finally:
        if fate == "killed":
            three_brokers.start(leader)
        else:
            os.kill(pid, signal.SIGCONT)


def test_the_example_of_the_page_runs(three_brokers, capsys):
    (code,) = (each for each in blocks("python", (ROOT / "docs" / "client.md").read_text()) if "share_consumer" in each)

    def here(_):
        return nullcontext(three_brokers)

    exec(code, {"KafkaClient": KafkaClient, "LocalCluster": here})
    assert "10 jobs done, at the second delivery" in capsys.readouterr().out


def test_each_record_is_accepted_once_while_members_and_a_leader_are_killed(client, three_brokers, tmp_path):
    client.create_topic("shared", partitions=3, replicas=3)
    share_life.from_the_beginning(client, "workers")
    with ShareGroup(client, "shared", "workers", tmp_path) as group:
        members_and_leaders_die(group, three_brokers.kill, three_brokers.start)


@pytest.mark.parametrize("copies", [True, False])
def test_each_record_that_is_given_up_has_its_letter(client, copies):
    share_letters.each_record_that_is_given_up_has_its_letter(
        client, f"given-up-{copies}", f"letters-{copies}", copies=copies
    )


def test_what_may_not_be_written_is_given_up_without_a_letter(client):
    share_letters.what_may_not_be_written_is_given_up_without_a_letter(client, "refused", "refusing")


def test_a_topic_is_created_for_letters(client):
    share_letters.a_topic_is_created_for_letters(client, "made", "making")
