"""Administration: topics, configurations, groups and their offsets, with an outcome for each thing asked."""
