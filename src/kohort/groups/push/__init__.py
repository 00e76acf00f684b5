"""The push protocol: consumers send nothing unasked; the coordinator pings, stops and starts them. Source: spec 4."""
