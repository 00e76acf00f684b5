"""Group coordinators over an existing Apache Kafka cluster, which stores their data and decides which one may write."""
