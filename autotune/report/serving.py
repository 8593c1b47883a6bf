"""Serves a WSGI application to this machine alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from autotune.errors import EnvironmentFault

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"
OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
"""Host names under which a browser may ask. Another `Host` is a page elsewhere that had its name point here; another
`Origin` is a page elsewhere that asks in the name of the user (the dashboard itself lets every origin read files)."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A line per request helps nobody."""


@contextmanager
def served(app: WSGIApplication, port: int) -> Iterator[str]:
    """Serve `app` on loopback while the context lasts; gives its address. Port 0 takes a free one.

    Raises:
        EnvironmentFault: the port is taken or not allowed.
    """
    try:
        server = make_server(LOOPBACK, port, _only_here(app), server_class=_Server, handler_class=_Quiet)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such port"
        raise EnvironmentFault(
            f"port {port} cannot be used: {reason}", hint="choose another --port, or 0 for any"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="dashboard", daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _only_here(app: WSGIApplication) -> WSGIApplication:
    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = [f"//{environ.get('HTTP_HOST', '')}", *filter(None, [environ.get("HTTP_ORIGIN")])]
        if any(_host(place) not in OWN_NAMES for place in asked):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The dashboard answers to this machine's own names alone.\n"]
        return app(environ, start_response)

    return guarded
