"""PURE. The control plane of one region: what it decides, without topic, connection or clock."""
