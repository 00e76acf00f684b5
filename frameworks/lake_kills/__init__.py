"""Programs that write one topic into one table, killed by the same seeded schedule: what each lost and doubled."""
