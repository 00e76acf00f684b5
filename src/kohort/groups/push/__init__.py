"""The push protocol: consumers send nothing by themselves; they are pinged, stopped, started. Source: spec 4."""
