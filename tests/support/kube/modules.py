"""What is taken from Go modules: by the ``go`` command, which checks them, and never committed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

_CRDS = {
    "sigs.k8s.io/gateway-api-inference-extension@v1.5.0": "config/crd/bases",
    "github.com/ray-project/kuberay/ray-operator@v1.5.0": "config/crd/bases",
    "sigs.k8s.io/gateway-api@v1.6.3": "config/crd/standard",
}
"""Modules that bring CustomResourceDefinitions, and the folder of each."""

LLM_D_CRDS = Path(__file__).with_name("llm_d_crds.yaml")
"""InferenceObjective and InferenceModelRewrite of llm-d.ai, which no module brings."""


def go(folder: Path, *args: str) -> str:
    """What ``go`` prints. Raises CalledProcessError or OSError."""
    env = {
        **os.environ,
        "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "local"),
        "GOFLAGS": "",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    done = subprocess.run(["go", *args], cwd=folder, env=env, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout


def crd_folders() -> dict[str, Path]:
    """The folder of CustomResourceDefinitions by the last part of each module's name.

    Downloaded unless the module cache has them.
    """
    with tempfile.TemporaryDirectory() as folder:  # without a go.mod around
        return {
            module.partition("@")[0].rpartition("/")[2]: Path(
                json.loads(go(Path(folder), "mod", "download", "-json", module))["Dir"], inside
            )
            for module, inside in _CRDS.items()
        }
