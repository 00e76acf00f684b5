"""Several coordinators over an existing Apache Kafka cluster, which keeps their data and says who may write it."""
