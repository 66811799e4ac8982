"""The function to compare with: it does nothing but tell when it was entered."""

import json
import os
import socket
import time


def handler(_event: object, _context: object) -> None:
    """Send the time."""
    entered = time.time_ns()
    host, port = os.environ["APP_SETTINGS"].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(json.dumps({"entered": entered}).encode(), (host, int(port)))
