"""What a process reads and writes in ZooKeeper."""
