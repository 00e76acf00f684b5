"""The whole system at once for minutes or hours, with a fault every so often: `make soak MINUTES=10`."""
