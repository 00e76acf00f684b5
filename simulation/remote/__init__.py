"""Several coordinators over one Kafka cluster: a remote journal, placement in ZooKeeper, and fault schedules."""
