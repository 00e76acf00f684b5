"""moto's server of S3's protocol, one request at a time: `python -m tests.region.moto_server PORT`.

Its own command answers in several threads. Two conditional puts of one object may then both succeed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple


def one_by_one(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Returns an application that answers one request after the other."""
    lock = threading.Lock()

    def answer(environ: Any, start_response: Any) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return answer


if __name__ == "__main__":
    port = int(sys.argv[1])
    app = one_by_one(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, app, threaded=True, request_handler=MotoRequestHandler)
