"""Builds kube-apiserver and etcd from Go modules, once: ``python -m tests.support.kube.build``.

Needs Go and its module proxy; with nothing cached some ten minutes on two cores.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.support.kube.modules import CACHE, crd_folders, download_crds, go

VERSION = "1.37.2"
FOLDER = CACHE / f"v{VERSION}"
APISERVER = FOLDER / "kube-apiserver"
ETCD = FOLDER / "etcd"
"""Built beside it: the one that systems bring may be too old. Before 3.4.31 or 3.5.13, watches that allow
bookmarks and watches from the present fail."""

_ETCD_PACKAGE = "go.etcd.io/etcd/server/v3"
_PACKAGES = {APISERVER: "k8s.io/kubernetes/cmd/kube-apiserver", ETCD: _ETCD_PACKAGE}


def missing() -> str:
    """Why there is no API server to test with, and what to do about it; empty where there is one."""
    built = all(os.access(program, os.X_OK) for program in _PACKAGES)
    if built and all(folder.is_dir() for folder in crd_folders().values()):
        return ""
    go_too = "" if shutil.which("go") else " (needs Go 1.26 or newer)"
    return f"kube-apiserver is not built; run 'make kube'{go_too}"


def build() -> None:
    """Build what is missing. Of several processes that call this the first builds, the others wait."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = {program: package for program, package in _PACKAGES.items() if not program.exists()}
        if wanted:
            module = FOLDER / "module"
            _write_module(module)
            for program, package in wanted.items():
                _build(module, program, package)
        download_crds()


def _build(module: Path, program: Path, package: str) -> None:
    _say(f"building {program.name} ({package})")
    started = time.monotonic()
    # Under another name, then renamed: a broken-off build leaves no program.
    partial = program.with_suffix(".partial")
    go(
        module,
        "build",
        "-mod=mod",
        "-trimpath",
        "-buildvcs=false",
        "-p=2",
        f"-ldflags={_linker_flags()}",
        f"-o={partial}",
        package,
    )
    partial.rename(program)
    _say(f"built {program.name} in {time.monotonic() - started:.0f} s")


def _write_module(module: Path) -> None:
    """Write a go.mod from which both programs can be built.

    The go.mod of k8s.io/kubernetes replaces each k8s.io/NAME with a folder of its repository. Those are
    missing from the published module, and a module's ``replace`` lines do not count for its users, so here
    each is replaced with its published release: v0.X.Y goes with Kubernetes 1.X.Y. ``go build -mod=mod``
    fills in the rest.
    """
    module.mkdir(parents=True, exist_ok=True)
    kubernetes = json.loads(go(module, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"))
    upstream = json.loads(go(Path(kubernetes["Dir"]), "mod", "edit", "-json"))
    staged = sorted(replaced["Old"]["Path"] for replaced in upstream["Replace"])
    required = {needed["Path"]: needed["Version"] for needed in upstream["Require"]}
    release = "v0." + VERSION.split(".", 1)[1]
    lines = [
        "module servepicker.test/kube",
        f"go {upstream['Go']}",
        f"godebug default=go{'.'.join(upstream['Go'].split('.')[:2])}",
        "require (",
        f"\tk8s.io/kubernetes v{VERSION}",
        f"\t{_ETCD_PACKAGE} {required[_ETCD_PACKAGE]}",
        *(f"\t{name} {release}" for name in staged if name in required),
        ")",
        "replace (",
        *(f"\t{name} => {name} {release}" for name in staged),
        ")",
    ]
    (module / "go.mod").write_text("\n".join(lines) + "\n")


def _linker_flags() -> str:
    """No debug data, and the version that the server says it is."""
    major, minor, _ = VERSION.split(".")
    said = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    package = "k8s.io/component-base/version"
    return " ".join(["-s", "-w", *(f"-X={package}.{name}={value}" for name, value in said.items())])


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"kube-apiserver cannot be built: {error}")
