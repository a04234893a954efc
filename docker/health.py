"""Exit 0 if the picker in this container is ready; Docker's HEALTHCHECK."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

host = os.environ.get("PICKER_BIND") or "127.0.0.1"
port = os.environ.get("PICKER_METRICS_PORT") or "9090"
netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
try:
    with urllib.request.urlopen(f"http://{netloc}/readyz", timeout=1.5):
        pass
except (urllib.error.URLError, OSError) as error:
    sys.exit(f"not ready: {error}")
