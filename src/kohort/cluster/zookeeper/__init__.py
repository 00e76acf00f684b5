"""Coordination through ZooKeeper, and the mirrors of topics and push groups in it."""
