"""Several coordinators over one Kafka cluster: a remote log, a place where they find each other, and bad days."""
