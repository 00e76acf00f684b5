"""Our coordinators over an existing Apache Kafka cluster: several processes, which keep no data of their own."""
