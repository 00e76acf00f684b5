"""Tests of an application against a broker that loses answers and dies: `pytest test_billing_with_faults.py`.

`kohort_broker` is a broker of its own for each test, which the plugin of the package brings.
"""

from kohort import Admin, Consumer, NewTopic, Producer
from kohort.testing import Fault


def bill(servers: str, orders: int) -> list[bytes]:
    """The code under test: reads orders until it has so many, and commits them."""
    billed: list[bytes] = []
    with Consumer(servers, group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.subscribe(["orders"])
        while len(billed) < orders:
            billed += [record.value for record in consumer.poll(timeout_ms=1000)]
        consumer.commit()
    return billed


def send_orders(servers: str, count: int) -> None:
    with Producer(servers) as producer:
        for number in range(count):
            producer.send("orders", f"order {number}")


def test_order_whose_answer_is_lost_is_billed_once(kohort_broker):
    lost = kohort_broker.faults.add(Fault(api="Produce", action="close_after"))  # written, and the answer never arrives
    send_orders(kohort_broker.bootstrap_servers, 1)
    lost.wait()
    assert bill(kohort_broker.bootstrap_servers, 1) == [b"order 0"]


def test_commit_whose_answer_is_lost_counts(kohort_broker):
    lost = kohort_broker.faults.add(Fault(api="OffsetCommit", action="close_after"))
    send_orders(kohort_broker.bootstrap_servers, 3)
    bill(kohort_broker.bootstrap_servers, 3)
    lost.wait()
    with Admin(kohort_broker.bootstrap_servers) as admin:
        offsets = admin.list_consumer_group_offsets("billing").all().values()
        assert sum(committed.offset for committed in offsets) == 3


def test_orders_survive_a_broker_that_is_killed(kohort_broker):
    with Admin(kohort_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 2)]).all()
    send_orders(kohort_broker.bootstrap_servers, 10)
    kohort_broker.kill()  # SIGKILL
    kohort_broker.restart()
    assert sorted(bill(kohort_broker.bootstrap_servers, 10)) == sorted(b"order %d" % number for number in range(10))
