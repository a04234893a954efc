"""What is taken from Go modules: by the ``go`` command, which checks them, and never committed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("SERVE_PICKER_KUBE_CACHE", "~/.cache/serve-picker/kube")).expanduser()

_CRDS = {
    "sigs.k8s.io/gateway-api-inference-extension@v1.5.0": "config/crd/bases",
    "github.com/ray-project/kuberay/ray-operator@v1.5.0": "config/crd/bases",
    "sigs.k8s.io/gateway-api@v1.6.3": "config/crd/standard",
}
"""Modules that bring CustomResourceDefinitions, and the folder of each."""

_FOLDER = CACHE / "crds"

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
    """The folder of CustomResourceDefinitions by the last part of each module's name."""
    return {module.partition("@")[0].rpartition("/")[2]: _FOLDER / module for module in _CRDS}


def download_crds() -> None:
    """Copy what is missing of them out of the module cache, so that tests need no Go."""
    missing = [module for module in _CRDS if not (_FOLDER / module).is_dir()]
    with tempfile.TemporaryDirectory() as outside:  # of any other module
        for module in missing:
            found = json.loads(go(Path(outside), "mod", "download", "-json", module))["Dir"]
            partial = _FOLDER / f"{module}.partial"
            partial.mkdir(parents=True, exist_ok=True)
            for file in Path(found, _CRDS[module]).glob("*.yaml"):
                (partial / file.name).write_bytes(file.read_bytes())  # not their modes: nobody may write them
            partial.rename(_FOLDER / module)
