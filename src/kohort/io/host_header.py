"""The check of the Host header of requests to a server on loopback, against DNS rebinding.

The name of a web page may lead to 127.0.0.1 once the page is open. Its scripts then count as scripts of the server
there, and could read its answers. The browser still sends the page's name as the Host.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def names_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine: `localhost`, or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
