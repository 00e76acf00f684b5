"""The frameworks that run on a broker: the account, the kills by a seed, short runs."""
