"""The declaration, validation and documentation of settings and arguments."""
