"""The handlers, one file per family of APIs. Each file ends with its map of request class to handler."""
