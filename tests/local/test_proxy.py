"""The proxy's faults: what arrives on which side, and who hears of an end."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from local.proxy import Proxy, proxy


@dataclass(frozen=True)
class Line:
    """A connection through the proxy, by both of its ends."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket


@pytest.fixture
def line() -> Iterator[Line]:
    """A connection on which each side has heard the other."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxy(listener.getsockname()[1]) as opened,
        socket.create_connection(("127.0.0.1", opened.port), timeout=10) as client,
    ):
        listener.settimeout(10)
        server, _ = listener.accept()
        with server:
            server.settimeout(10)
            line = Line(opened, client, server)
            assert talk(line) == (b"ask", b"answer")
            yield line


def talk(line: Line) -> tuple[bytes, bytes]:
    """Ask and answer; return what arrived."""
    line.client.sendall(b"ask")
    asked = line.server.recv(9)
    line.server.sendall(b"answer")
    return asked, line.client.recv(9)


def test_delay_loses_nothing(line: Line) -> None:
    line.proxy.set("delay")
    assert talk(line) == (b"ask", b"answer")


def test_drop_ends_both_sides(line: Line) -> None:
    line.proxy.set("drop")
    assert (line.client.recv(9), line.server.recv(9)) == (b"", b"")


def test_half_close_delivers_the_question_and_ends_where_the_answer_would_come(line: Line) -> None:
    line.proxy.set("half-close")
    assert talk(line) == (b"ask", b"")


def test_swallow_delivers_the_question_and_loses_the_answer(line: Line) -> None:
    line.proxy.set("swallow")
    line.client.sendall(b"ask")
    assert line.server.recv(9) == b"ask"
    line.server.sendall(b"answer")
    assert_only_the_server_hears_of_an_end(line)


def test_black_hole_loses_the_question(line: Line) -> None:
    line.proxy.set("black-hole")
    line.client.sendall(b"ask")
    assert_only_the_server_hears_of_an_end(line)


def test_black_hole_loses_what_the_server_says(line: Line) -> None:
    line.proxy.set("black-hole")
    line.server.sendall(b"answer")
    assert_only_the_server_hears_of_an_end(line)


def assert_only_the_server_hears_of_an_end(line: Line) -> None:
    """Wait until something is lost; then the network is whole again."""
    deadline = time.monotonic() + 10
    while not any(pair.broken for pair in line.proxy._pairs):
        assert time.monotonic() < deadline, "nothing was lost"
        time.sleep(0.005)
    line.proxy.set("whole")
    assert line.server.recv(9) == b""
    line.client.settimeout(0)
    with pytest.raises(BlockingIOError):
        line.client.recv(9)
