"""Request handlers, one module per family of APIs. Each module ends with its list of handlers."""
