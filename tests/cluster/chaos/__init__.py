"""Groups on coordinators over Kafka while brokers, ZooKeepers, coordinators and members are killed, stopped and woken.

Members, their logs and what must hold of them are those of `tests/peers/churn`.
"""
