"""Configuration of a broker: its settings, and the files for quotas, users and group settings."""
