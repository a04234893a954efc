#!/bin/sh
# Install the picker, pinned, into a new virtual environment: docker/build.sh TARGET
# Run by the Dockerfile's build stage, and by a test. Needs neither root nor a C compiler.
set -eu
target=$1
"${PYTHON:-python3}" -m venv "$target"
"$target/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check -c constraints.txt .
"$target/bin/python" -m pip check
"$target/bin/serve-picker" --version
# Nothing is installed into the image later.
"$target/bin/python" -m pip uninstall --quiet --yes pip
