"""A TCP proxy of 127.0.0.1 with a network's faults: connections cut, gone silent, or slow.

A connection that has lost something never recovers: once the network is whole again, the server is
told that it is gone (as its keepalive would say), and the client hears nothing more.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

Mode = Literal["whole", "drop", "black-hole", "half-close", "swallow", "delay"]

LATE = 0.3  # s, each piece
#: What is lost is both ways, or the server's replies.
SILENT, MUTE = ("black-hole",), ("black-hole", "half-close", "swallow")


@dataclass(eq=False)
class Pair:
    """Be one connection: the socket on each side, and whether it has lost something."""

    client: socket.socket
    server: socket.socket
    broken: bool = False


def end(side: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a socket down, which also wakes the thread that reads from it."""
    with suppress(OSError):  # it has ended already
        side.shutdown(how)


class Proxy:
    """Pass connections on to a port of 127.0.0.1, in the mode that was set last.

    whole: as they are. drop: every connection is cut, new ones at once. black-hole: nothing
    arrives, on either side, not even an end. half-close: what the client sends arrives, and where a
    reply would come, an end does. swallow: the same without that end. delay: each piece arrives
    late.
    """

    def __init__(self, to: int) -> None:
        """Listen on a free port."""
        self._to = to
        self._mode: Mode = "whole"
        self._pairs: set[Pair] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def set(self, mode: Mode) -> None:
        """Change the mode, of the connections that are open too."""
        with self._lock:
            self._mode = mode
            for pair in self._pairs:
                self._strike(pair)

    def close(self) -> None:
        """Listen no more, and cut what is open."""
        end(self._listener)
        self._accepting.join()
        self._listener.close()
        self.set("drop")

    def _strike(self, pair: Pair) -> None:
        if self._mode == "drop":
            end(pair.client)
            end(pair.server)
        elif self._mode == "whole" and pair.broken:
            end(pair.server)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is down
                client.close()
                continue
            threading.Thread(target=self._serve, args=(Pair(client, server),), daemon=True).start()

    def _serve(self, pair: Pair) -> None:
        with pair.client, pair.server:
            with self._lock:
                self._pairs.add(pair)
                self._strike(pair)
            back = threading.Thread(target=self._pump, args=(pair, True), daemon=True)
            back.start()
            self._pump(pair, reply=False)
            back.join()
            with self._lock:
                self._pairs.remove(pair)

    def _pump(self, pair: Pair, reply: bool) -> None:  # noqa: FBT001 - a thread's argument
        source, sink = (pair.server, pair.client) if reply else (pair.client, pair.server)
        with suppress(OSError):
            while piece := source.recv(65536):
                time.sleep(LATE if self._mode == "delay" else 0)
                if self._loses(pair, reply=reply):
                    pair.broken = True
                    if self._mode == "half-close":
                        end(sink, socket.SHUT_WR)
                else:
                    sink.sendall(piece)
        if not self._loses(pair, reply=reply):
            end(sink)
        elif not reply:
            pair.broken = True  # the server hears of the end when the network is whole again

    def _loses(self, pair: Pair, *, reply: bool) -> bool:
        return self._mode in (MUTE if reply else SILENT) or (reply and pair.broken)


@contextmanager
def proxy(to: int) -> Iterator[Proxy]:
    """Run a proxy in front of the server at this port."""
    opened = Proxy(to)
    try:
        yield opened
    finally:
        opened.close()
