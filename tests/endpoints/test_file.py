"""The watched file: every way it is changed, lost and spoiled."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import pytest

from picker.endpoints.endpoint import EndpointsError
from picker.endpoints.file import FileSource
from picker.endpoints.file_format import parse_endpoints
from picker.watched import Watch
from tests.endpoints.follow import DEADLINE, Follower

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INTERVAL = 0.02


def listed(*numbers: int) -> str:
    return "endpoints:\n" + "".join(f"- {{address: 10.0.0.{number}, port: 80}}\n" for number in numbers)


def addresses(*numbers: int) -> list[str]:
    return [f"10.0.0.{number}:80" for number in numbers]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_text(listed(1))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace(path: Path, text: str) -> None:
    """As most writers do it: a temporary file beside it, and a rename over it."""
    beside = path.with_name(".endpoints.yaml.tmp")
    beside.write_text(text)
    beside.rename(path)


class Log:
    """What the source logged: waits for the next line of an event."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "picker.watched")
        self._caplog = caplog

    def lines(self, message: str) -> list[str]:
        return [
            str(getattr(record, "fields", {}).get("error", ""))
            for record in self._caplog.records
            if message in record.message
        ]

    async def reaches(self, message: str, count: int) -> list[str]:
        async with asyncio.timeout(DEADLINE):
            while len(self.lines(message)) < count:  # noqa: ASYNC110  the log has no event to wait for
                await asyncio.sleep(INTERVAL)
        return self.lines(message)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


BROKEN = "cannot be used"
MENDED = "can be used again"


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (remove, "endpoints.yaml cannot be read: No such file or directory"),
        (become_folder, "endpoints.yaml cannot be read: it is not a regular file"),
        (become_pipe, "endpoints.yaml cannot be read: it is not a regular file"),
        (lambda path: write(path, "endpoints: [\n"), "endpoints.yaml, line 2: not YAML: "),
        (lambda path: write(path, "#" * (2 << 20)), "endpoints.yaml, line 1: the file is larger than 1 MiB"),
    ],
    ids=["missing", "folder", "pipe", "invalid", "huge"],
)
async def test_a_start_without_a_usable_file_is_one_line(
    file: Path, prepare: Callable[[Path], None], error: str
) -> None:
    prepare(file)
    with pytest.raises(EndpointsError) as caught:
        await anext(FileSource(file).sets())
    assert error in str(caught.value)
    assert str(caught.value).startswith(str(file.parent))


async def test_an_atomic_replacement(file: Path) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        assert await follower.next() == addresses(1)
        for numbers in ((1, 2), (2,), (), (3, 1)):
            replace(file, listed(*numbers) if numbers else "endpoints: []\n")
            assert await follower.next() == addresses(*numbers)


async def test_writing_in_place_and_files_beside(file: Path) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        await follower.next()
        for name in ("endpoints.yaml~", ".endpoints.yaml.swp", "4913"):
            (file.parent / name).write_text(listed(9))
        write(file, listed(2))
        assert await follower.next() == addresses(2)


async def test_a_config_map_is_swapped_by_its_symlinks(tmp_path: Path) -> None:
    # As the kubelet does it: endpoints.yaml -> ..data/endpoints.yaml, ..data -> the latest folder.
    for number in (1, 2):
        (tmp_path / f"..version{number}").mkdir()
        (tmp_path / f"..version{number}" / "endpoints.yaml").write_text(listed(number))
    (tmp_path / "..data").symlink_to("..version1")
    (tmp_path / "endpoints.yaml").symlink_to("..data/endpoints.yaml")
    async with Follower(FileSource(tmp_path / "endpoints.yaml", interval=INTERVAL)) as follower:
        assert await follower.next() == addresses(1)
        (tmp_path / "..data_tmp").symlink_to("..version2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        assert await follower.next() == addresses(2)


async def test_unchanged_content_is_not_told_again(file: Path) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        assert await follower.next() == addresses(1)
        replace(file, listed(1))
        replace(file, listed(1) + "# a comment\n")
        replace(file, listed(1, 2))
        assert await follower.next() == addresses(1, 2)
        assert follower.unread == 0


async def test_a_change_that_only_concerns_labels_is_told(file: Path) -> None:
    sets = FileSource(file, interval=INTERVAL).sets()
    assert [endpoint.labels for endpoint in await anext(sets)] == [{}]
    replace(file, "endpoints: [{address: 10.0.0.1, port: 80, labels: {a: b}}]")
    async with asyncio.timeout(DEADLINE):
        assert [endpoint.labels for endpoint in await anext(sets)] == [{"a": "b"}]
    await sets.aclose()


async def test_a_half_written_file_leaves_the_last_good_set(file: Path, log: Log) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        await follower.next()
        write(file, listed(1, 2)[:-8])
        (error,) = await log.reaches(BROKEN, 1)
        assert "line 4: not YAML" in error
        write(file, listed(1, 2))
        assert await follower.next() == addresses(1, 2)
    assert len(log.lines(BROKEN)) == 1
    assert len(log.lines(MENDED)) == 1


def test_a_file_that_still_grows_is_not_read(file: Path) -> None:
    # Each of these states is valid; only the last one is what the writer means.
    watch = Watch(file, lambda raw: parse_endpoints(raw, str(file)), EndpointsError)
    watch.first()
    watch.look()
    with file.open("w") as writer:
        for line in listed(1, 2, 3, 4).splitlines(keepends=True):
            writer.write(line)
            writer.flush()
            assert watch.look() is None
    endpoints = watch.look()
    assert endpoints is not None
    assert [endpoint.address for endpoint in endpoints] == addresses(1, 2, 3, 4)
    assert watch.look() is None


async def test_a_file_removed_and_restored(file: Path, log: Log) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        await follower.next()
        remove(file)
        (error,) = await log.reaches(BROKEN, 1)
        assert error.endswith("cannot be read: No such file or directory")
        replace(file, listed(1))
        await log.reaches(MENDED, 1)
        replace(file, listed(2))
        assert await follower.next() == addresses(2)
        assert follower.unread == 0
    assert len(log.lines(BROKEN)) == 1


async def test_each_distinct_mistake_is_told_once(file: Path, log: Log) -> None:
    async with Follower(FileSource(file, interval=INTERVAL)) as follower:
        await follower.next()
        replace(file, "a: 1\n")
        await log.reaches(BROKEN, 1)
        replace(file, "a: 2\n")  # the same mistake in another file
        replace(file, "b: 1\n")
        await log.reaches(BROKEN, 2)
        replace(file, listed(2))
        assert await follower.next() == addresses(2)
    first, second = log.lines(BROKEN)
    assert "unknown key 'a'" in first
    assert "unknown key 'b'" in second


async def test_the_port_of_the_metrics_can_be_set_for_all(file: Path) -> None:
    sets = FileSource(file, metrics_target_port=8080).sets()
    assert [endpoint.metrics_address for endpoint in await anext(sets)] == ["10.0.0.1:8080"]
    await sets.aclose()
