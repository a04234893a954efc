"""Everything about the package is in pyproject.toml; here is only how to compile what every request passes.

    pip install '.[compile]'
    SERVE_PICKER_COMPILE=1 pip install --no-build-isolation --no-deps --force-reinstall .

mypyc makes C extensions of the same typed modules, which then take about half of the CPU. Nothing else
changes, and without the variable nothing is compiled. Needs a C compiler, Python's headers, and (for the
types) what the modules import. ``make compiled`` keeps such a tree beside the checkout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup

HOT = (
    "picker/extproc",
    "picker/inference",
    "picker/metrics/dialects",
    "picker/metrics/http1.py",
    "picker/metrics/pages.py",
    "picker/metrics/reading.py",
    "picker/routing",
    "picker/serving/http2",
    "picker/streams.py",
    "scorer",
)
LEFT_OUT = {
    # They extend classes of C libraries, which compiled classes cannot.
    "picker/serving/http2/tls.py",
    "scorer/draws.py",
    # No request passes them.
    "picker/serving/http2/health.py",
    "scorer/document.py",
    "scorer/policy.py",
}


def hot_modules() -> list[str]:
    """The paths of the modules that are compiled."""
    paths = {str(path) for hot in map(Path, HOT) for path in (hot.glob("*.py") if hot.is_dir() else [hot])}
    return sorted(path for path in paths - LEFT_OUT if not path.endswith("__init__.py"))


# Metadata, which is asked for first, needs no compiler.
if os.environ.get("SERVE_PICKER_COMPILE") == "1" and not {"egg_info", "dist_info"} & set(sys.argv):
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise SystemExit(
            f"SERVE_PICKER_COMPILE=1: {error}; pip install 'serve-picker[compile]', then --no-build-isolation"
        ) from error
    setup(ext_modules=mypycify(hot_modules(), opt_level="2", debug_level="0"))
else:
    setup()
