"""What a measurement ran on, for the head of its page."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def machine(version: str) -> str:
    """Say what it ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    model = next(models, platform.machine())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({model}, "
        f"load {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, PostgreSQL {version}"
    )
