"""What a broker is set to, and what it keeps beside its logs of quotas and users."""
