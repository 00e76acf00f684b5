"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Source: spec 3."""
