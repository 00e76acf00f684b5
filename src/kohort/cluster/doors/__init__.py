"""How coordinators find each other, and who has which shard."""
