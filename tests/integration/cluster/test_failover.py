"""A broker is killed, stopped, or is the controller: leaders, ISRs and epochs end as Kafka's do."""

import asyncio
import threading
import time

import pytest
from confluent_kafka import ElectionType, TopicPartition

from replication.coordination import nodes, open_tree
from tests.integration.cluster.conftest import SESSION_TIMEOUT_MS, running
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow

# It is the end of the session that the others wait for, and not `replica.lag.time.max.ms`. On a machine with a load of
# 15 the second half of that takes as long again.
FAILOVER_S = 3 * SESSION_TIMEOUT_MS / 1000


async def remove_controller(coordination):
    """End the controller's term: remove the node that names it."""
    tree = await open_tree(coordination, on_session=lambda event: None, create=False)
    try:
        await tree.delete(nodes.CONTROLLER)
    finally:
        await tree.close()


def test_a_killed_leader_is_replaced_in_time_and_rejoins_at_the_end_of_the_isr(cluster):
    controller, one, two = cluster.roles()
    three = controller
    topic = cluster.create((one, two, three), (two, three, one), (three, one, two))
    assert cluster.states(topic) == {
        0: (one, [one, two, three], 0),
        1: (two, [two, three, one], 0),
        2: (three, [three, one, two], 0),
    }
    assert cluster.produce(topic, range(100)) == []

    cluster.running.kill(one)
    took_s = cluster.until_states(
        topic, {0: (two, [two, three], 1), 1: (two, [two, three], 1), 2: (three, [three, two], 1)}
    )

    assert took_s < FAILOVER_S
    assert cluster.produce(topic, range(100, 200)) == []
    assert cluster.values(topic, count=200) == [str(number) for number in range(200)]
    assert cluster.running.controller() == controller

    cluster.running.restart(one)
    cluster.until_states(
        topic,
        {0: (two, [two, three, one], 1), 1: (two, [two, three, one], 1), 2: (three, [three, two, one], 1)},
    )


def test_a_stopped_broker_hands_its_leaderships_over_first_and_clients_see_no_error(cluster):
    controller, one, two = cluster.roles()
    three = controller
    topic = cluster.create((one, two, three), (two, three, one))
    single = cluster.create((one,))
    errors: list[object] = []
    producing = threading.Thread(target=lambda: errors.extend(cluster.produce(topic, range(2000), **{"linger.ms": 1})))
    producing.start()

    (ended_with,) = cluster.running.stop(one)
    producing.join()

    assert ended_with == 0
    assert errors == []
    states = cluster.states(topic)
    assert states[0] == (two, [two, three], 1)
    assert states[1] == (two, [two, three], 1)
    cluster.until_states(single, {0: (-1, [one], 1)})
    assert cluster.values(topic, count=2000) == [str(number) for number in range(2000)]


def test_a_killed_controller_is_replaced_and_holds_nobody_up(cluster):
    """Its successor takes it out of the ISRs that others lead: they do not wait until it is found too slow."""
    controller, one, two = cluster.roles()
    topic = cluster.create((controller, one, two), (one, controller, two))
    epoch = cluster.state(topic).controller_epoch
    assert cluster.produce(topic, range(10), partition=1) == []

    cluster.running.kill(controller)
    begin = time.monotonic()
    stalled: list[float] = []
    producing = threading.Thread(
        target=lambda: (
            cluster.produce(topic, [10], partition=1),
            stalled.append(time.monotonic() - begin),
        )
    )
    producing.start()
    took_s, following = cluster.until(lambda: _other(cluster.running.controller(), controller))
    assert took_s < FAILOVER_S
    cluster.until(lambda: cluster.states(topic)[0] == (one, [one, two], 1))

    assert following in (one, two)
    # In a leader epoch of its own: it was the controller, and not the leader.
    cluster.until(lambda: cluster.states(topic)[1] == (one, [one, two], 1))
    assert cluster.state(topic).controller_epoch == epoch + 1
    producing.join()
    print(f"acks=all stood still for {stalled[0]:.2f} s; a session is {SESSION_TIMEOUT_MS} ms")
    assert cluster.values(topic, count=11, partition=1) == [str(number) for number in range(11)]


def test_a_controller_whose_node_is_removed_makes_way_for_a_new_term(cluster):
    topic = cluster.create((1, 2))
    epoch = cluster.state(topic).controller_epoch

    asyncio.run(remove_controller(cluster.running.coordination))
    later = cluster.create((2, 1))

    assert cluster.state(later).controller_epoch == epoch + 1
    assert cluster.states(topic) == {0: (1, [1, 2], 0)}


@only_long("brokers that restart")
def test_a_stopped_controller_hands_over_its_partitions_and_then_its_office(cluster):
    controller, one, two = cluster.roles()
    topic = cluster.create((controller, one), (two, controller))

    cluster.running.stop(controller)

    assert cluster.states(topic) == {0: (one, [one], 1), 1: (two, [two], 1)}
    _, following = cluster.until(lambda: _other(cluster.running.controller(), controller))
    assert following in (one, two)


@only_long("brokers that restart")
def test_preferred_replicas_lead_again_when_asked_to(cluster):
    controller, one, two = cluster.roles()
    topic = cluster.create((one, two), (two, one), (controller, one))
    cluster.running.kill(one)
    cluster.until_states(topic, {0: (two, [two], 1), 1: (two, [two], 1), 2: (controller, [controller], 1)})
    cluster.running.restart(one)
    back = {0: (two, [two, one], 1), 1: (two, [two, one], 1), 2: (controller, [controller, one], 1)}
    cluster.until_states(topic, back)

    asked = [TopicPartition(topic, number) for number in (0, 1, 2)]
    cluster.administer("elect_leaders", ElectionType.PREFERRED, asked)

    # The ISR keeps its order, and nothing is written where nothing changes.
    cluster.until_states(topic, {**back, 0: (one, [two, one], 2)})


def _other(found, than):
    return found if found not in (None, than) else None


def test_leadership_goes_back_to_preferred_replicas_by_itself(tmp_path):
    rebalance = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": 1}
    with running(2, tmp_path, **rebalance) as cluster:
        topic = cluster.create((1, 2), (2, 1))
        cluster.running.stop(1)
        assert cluster.states(topic) == {0: (2, [2], 1), 1: (2, [2], 1)}

        cluster.running.restart(1)

        cluster.until_states(topic, {0: (1, [2, 1], 2), 1: (2, [2, 1], 1)})


@only_long("brokers that restart")
def test_a_broker_that_stops_while_there_is_no_controller_waits_for_the_next_one(cluster):
    """Its only try is not spent on a controller that is dead, and for a session timeout nobody knows it."""
    controller, one, two = cluster.roles()
    topic = cluster.create((one, two))
    # Other tests' topics count as well: a broker that is not in sync can take over nothing.
    cluster.until(lambda: not cluster.running.not_in_sync(one) and not cluster.running.not_in_sync(two))
    log = cluster.running.log_dir(one) / "broker" / "server.log"
    before = len(log.read_text())
    cluster.running.kill(controller)
    assert cluster.running.stop(one) == [0]
    said = log.read_text()[before:]
    assert "Controlled shutdown succeeded" in said, said
    assert "Proceeding" not in said
    assert cluster.state(topic).leader == two
