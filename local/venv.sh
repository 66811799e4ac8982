#!/bin/sh
# Make .venv with the Python named by $PYTHON and a pip in it, on a machine that may have no pip at all.
set -eu
cd "$(dirname "$0")/.."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $PYTHON is missing or older than 3.11; name another: make setup PYTHON=python3.13" >&2
  exit 1
}
# make writes the stamp when all of this is done: without it, whatever is there is half made.
[ -e .venv/pip.ready ] && exit 0
rm -rf .venv
"$PYTHON" -m venv --without-pip .venv
.venv/bin/python -m ensurepip --default-pip >/dev/null 2>&1 && exit 0
# Debian keeps ensurepip in python3-venv; the wheel it would use can be had without installing anything.
local/debian.sh .venv/debian-pip python3-pip-whl
wheel=$(ls .venv/debian-pip/usr/share/python-wheels/pip-*.whl)
.venv/bin/python "$wheel/pip" install -qq --no-index "$wheel"
