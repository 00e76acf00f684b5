"""The parts of a run: virtual time, network, disk, the coordinator's process, the plan of a seed, and its run."""
