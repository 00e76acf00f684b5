"""The region's control plane: a pure state machine of checkpoints, membership and recovery."""
