"""Tests of the broker's TLS and logins."""
