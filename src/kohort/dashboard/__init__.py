"""The dashboard: a web page of a cluster's groups, served from the last read. Needs the extra `dashboard`."""
