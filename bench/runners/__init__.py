"""Programs that do one job with one client, time it themselves and print the result as JSON."""
