"""A region in virtual time, with all that it stands on."""
