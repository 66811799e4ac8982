"""What stands on a local port in the place of AWS Lambda, and answers as a test says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Cloud = Callable[[int], None]


class Lambda(BaseHTTPRequestHandler):
    """Answers each invoke as Lambda does: an empty body, the connection kept."""

    protocol_version = "HTTP/1.1"
    status = 202
    error = ""

    def setup(self) -> None:
        self.server.connections += 1  # type: ignore[attr-defined]
        super().setup()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.kinds.append(self.headers["x-amz-invocation-type"])  # type: ignore[attr-defined]
        self.answer()

    def answer(self) -> None:
        self.send_response(self.status)
        if self.error:
            self.send_header("x-amzn-errortype", self.error)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def endpoint(handler: type[BaseHTTPRequestHandler] = Lambda) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.connections, server.kinds = 0, []
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.socket.close()
