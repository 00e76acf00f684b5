"""Runs kohort's coordinator over Apache Kafka, and a consumer on it: `python coordinator_over_kafka.py KAFKA`.

The coordinator keeps groups and offsets in a topic of that cluster. In production it is a service of its own (see
deploy/), at an address that its clients know. Here it is a child of this program, and ends with it.
"""

import subprocess
import sys

from kohort import Admin, Consumer, NewTopic, Producer

kafka = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
command = [sys.executable, "-m", "kohort", "coordinator", "--kafka", kafka, "--listen", "127.0.0.1:0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
    try:
        ready, _, servers = coordinator.stdout.readline().strip().partition(" ")
        if ready != "ready":
            sys.exit("the coordinator did not start; its log says why")
        print("coordinator at", servers)
        with Admin(kafka) as admin:  # records go to Kafka itself
            admin.create_topics([NewTopic("measurements", 2)]).all()
        with Producer(kafka) as producer:
            for number in range(100):
                producer.send("measurements", str(number))
        with Consumer(servers, group_id="readers", group_protocol="consumer", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["measurements"])
            count = 0
            while count < 100:
                count += sum(1 for _ in consumer.poll(timeout_ms=1000))
            consumer.commit()
        with Admin(servers) as admin:  # the group lives at kohort's coordinator
            offsets = admin.list_consumer_group_offsets("readers").all().values()
            print("committed", sum(committed.offset for committed in offsets))
    finally:
        coordinator.terminate()
