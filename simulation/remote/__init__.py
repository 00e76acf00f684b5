"""Several coordinators over one Kafka cluster: a journal in Kafka, placement in ZooKeeper, and fault schedules."""
