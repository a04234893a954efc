"""The package, the image and the process as a whole."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.rig.picker import Picker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
NOBODY = 65532
MINUTE = 60.0


def run(command: Sequence[str | Path], timeout: float = MINUTE, **options: Any) -> str:
    """What a command printed, both streams; a failure shows it."""
    done = subprocess.run(
        command,
        timeout=timeout,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def copy(sources: Sequence[str], target: Path) -> None:
    """Copy files and folders of the checkout, without what tools left in them."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in sources:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(project: dict[str, Any]) -> list[Requirement]:
    lists = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    found = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in found if requirement.name != project["project"]["name"]]


def test_every_requirement_is_pinned_within_its_bounds(project: dict[str, Any]) -> None:
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), "a pin and nothing else"
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    for requirement in requirements(project):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    copy(["picker", "scorer", "bench", "tests/support", "pyproject.toml", "README.md", "LICENSE"], source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "-w", out, source], cwd=tmp_path)
    (wheel,) = out.glob("serve_picker-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        scripts = archive.read(entry_points).decode()
    packaged = {name for name in names if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(source))
        for package in ("picker", "scorer")
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    assert packaged == wanted
    assert {"picker/py.typed", "scorer/py.typed", "picker/extproc/_generated/base_pb2.py"} <= wanted
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "serve-picker = picker.cli:main" in scripts


async def test_serving_a_list_imports_neither_kubernetes_nor_ray(tmp_path: Path) -> None:
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1", "PYTHONPROFILEIMPORTTIME": "1"}
    async with Picker(settings, directory=tmp_path) as picker:
        assert "picker_streams_open" in await picker.metrics()
    log = (tmp_path / "picker.log").read_text()
    imported = set(re.findall(r"(?m)^import time: .*\| +([\w.]+)$", log))
    assert {"picker.app", "numpy"} <= imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & {"kubernetes", "ray", "opentelemetry", "grpc", "pytest", "bench", "tests"}


def dockerfile_stages() -> list[list[str]]:
    """The instructions of each stage."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text())
    return [stage.splitlines() for stage in re.split(r"(?m)^(?=FROM )", text)[1:]]


@pytest.fixture
def user_folder() -> Iterator[Path]:
    """A folder that a user without rights owns."""
    folder = Path(tempfile.mkdtemp())
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def as_user() -> dict[str, Any]:
    """How to start a process without rights; as oneself where one has none."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def user_python() -> str:
    """An interpreter that such a user may run, newest first; that of these tests may be in root's home."""
    paths = [Path(sys.base_prefix, "bin"), *map(Path, os.get_exec_path()), Path("/usr/bin")]
    for path in paths:
        for name in ("python3.13", "python3.12", "python3.11", "python3"):
            check = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
            try:
                subprocess.run([path / name, "-c", check], check=True, capture_output=True, **as_user())
            except (OSError, subprocess.CalledProcessError):
                continue
            return str(path / name)
    pytest.fail("no Python 3.11 with venv that a user without rights may run; apt-get install python3-venv")


@pytest.mark.timeout(6 * MINUTE)
def test_the_image_is_built_by_a_user_without_rights(user_folder: Path) -> None:
    build = dockerfile_stages()[0]
    sources = [word for line in build if line.startswith("COPY ") for word in line.split()[1:-1]]
    command = [line.removeprefix("RUN ") for line in build if line.startswith("RUN ")][-1]
    script, _ = command.split()
    source, target = user_folder / "src", user_folder / "picker"
    copy(sources, source)
    if os.getuid() == 0:
        for path in (source, *source.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    # Compiling it is `make compiled`, which takes minutes.
    env = {**os.environ, "HOME": str(user_folder), "PYTHON": user_python(), "SERVE_PICKER_COMPILE": "0"}
    printed = run([source / script, target], timeout=5 * MINUTE, cwd=source, env=env, **as_user())
    assert "serve-picker, version" in printed
    help_text = run([target / "bin/serve-picker", "serve", "--help"], cwd=user_folder, env=env, **as_user())
    assert "--endpoints-file" in help_text
    refused = subprocess.run(
        [target / "bin/python", ROOT / "docker/health.py"],
        env={"PICKER_METRICS_PORT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=MINUTE,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("not ready: ")


def test_the_image_runs_as_a_numbered_user_and_says_how_it_is() -> None:
    final = dockerfile_stages()[-1]
    assert f"USER {NOBODY}:{NOBODY}" in final
    assert any(line.startswith("HEALTHCHECK ") for line in final)
    assert final[-1] == 'ENTRYPOINT ["/opt/picker/bin/serve-picker", "serve"]'


@pytest.mark.parametrize(("script", "shell"), [(".ci/run", "bash"), ("docker/build.sh", "sh")])
def test_scripts_can_be_run(script: str, shell: str) -> None:
    assert (ROOT / script).stat().st_mode & stat.S_IXUSR
    run([shell, "-n", ROOT / script])


SKIPPING = {
    "call": "import pytest\ndef test_one():\n    pytest.skip('no envoy')\n",
    "mark": "import pytest\n@pytest.mark.skip(reason='no envoy')\ndef test_one():\n    pass\n",
    "shared": "import pytest\ndef test_one():\n    pytest.skip('needs page.txt in shared/samples')\n",
    "module": "import pytest\npytest.skip('no envoy', allow_module_level=True)\n",
}


@pytest.mark.parametrize(("no_skips", "failures"), [("1", len(SKIPPING) - 1), ("", 0)])
def test_a_skip_is_a_failure_where_skips_are_forbidden(no_skips: str, failures: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    for kind, text in SKIPPING.items():
        (tmp_path / f"test_{kind}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors"],
        cwd=tmp_path,
        env={**os.environ, "NO_SKIPS": no_skips},
        capture_output=True,
        text=True,
        check=False,
        timeout=MINUTE,
    )
    assert done.stdout.count("\nNO_SKIPS=1 forbids it: ") == failures, done.stdout
    assert (done.returncode == 1) == bool(failures)


SHARING = """\
import os
import pathlib
import pytest

@pytest.mark.sequence("over here")
@pytest.mark.parametrize("n", range(3))
def test_one(n):
    with pathlib.Path("workers").open("a") as file:
        print(pathlib.Path(__file__).parent.name, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_two_at_a_time_keep_what_shares_a_server_in_one_process(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    for file in ("kube/test_a.py", "kube/test_b.py", "other/test_a.py", "other/test_b.py"):
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).write_text(SHARING)
    printed = run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--import-mode=importlib"],
        cwd=tmp_path,
    )
    workers = [line.split() for line in (tmp_path / "workers").read_text().splitlines()]
    assert len(workers) == 12
    assert len({worker for room, worker in workers if room == "kube"}) == 1
    assert len({worker for _, worker in workers}) == 2
    assert "ext_proc sequences: 12 over here" in printed
