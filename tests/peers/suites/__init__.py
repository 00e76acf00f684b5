"""Tests that other projects wrote for their own clients, run against our broker (`make suites`)."""
