#!/bin/sh
# Install the picker, pinned and compiled, into a new virtual environment: docker/build.sh TARGET
# Run by the Dockerfile's build stage, and by a test. Needs no root. SERVE_PICKER_COMPILE=0 needs no C compiler.
set -eu
target=$1
python=${PYTHON:-python3}
compile=${SERVE_PICKER_COMPILE:-1}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
pip() { # VENV ARGUMENTS
    venv=$1
    shift
    "$venv/bin/python" -m pip --quiet --no-cache-dir --disable-pip-version-check "$@"
}

# What is compiled is checked against the types of what it imports, so that has to be there, too.
"$python" -m venv "$build/venv"
if [ "$compile" = 1 ]; then
    pip "$build/venv" install -c constraints.txt '.[compile]'
    SERVE_PICKER_COMPILE=1 pip "$build/venv" wheel --no-build-isolation --no-deps -w "$build" .
else
    pip "$build/venv" wheel --no-deps -w "$build" .
fi

"$python" -m venv "$target"
pip "$target" install -c constraints.txt "$build"/serve_picker-*.whl
pip "$target" check
"$target/bin/serve-picker" --version
# Nothing is installed into the image later.
pip "$target" uninstall --yes pip
