"""Several coordinators over one Apache Kafka cluster: who serves what, and what stands in Kafka."""
