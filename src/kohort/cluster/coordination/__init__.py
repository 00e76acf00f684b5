"""How coordinators agree who leads and which coordinator owns each shard, without ZooKeeper."""
