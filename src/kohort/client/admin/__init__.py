"""Administration: topics, configurations, groups and their offsets, with one outcome per resource."""
