"""A process or its drive ends at a random moment while rows are written and committed: the directory opens whole.

It opens as the last commit that had returned or as the one that was being made, every row of it and no row of another.
What was cut short is opened by the next process, which may end while it recovers. Three kinds of end, each of which
shows what the others do not:

- SIGKILL: the kernel keeps what it has taken, so this proves that whoever opens the directory next on the same machine
  finds commits whole, and says nothing of power cuts.
- The file system is shut down: what it had not written is lost, names and lengths of files among it. Rows, which are
  written past the page cache, are on the drive by then, in the order of writing.
- A drive with a cache of its own, here a model of one: of what was not synced, sectors arrive in any order, or never.
"""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.faults.drives import CachingDrive, small_drive
from tests.faults.generations import SCENES, Expected, Generation, Tables, go_on
from tests.faults.processes import process, rest

IN_CI = "CI" in os.environ
SEED = 18 if IN_CI else random.SystemRandom().randrange(1 << 16)
GROWTH = 12
"""Commits before the first kill: the log has grown, and its free positions are used again."""
MANY = 6 if IN_CI else 25
PHASES = ("open", "write", "commit")
End = Callable[[Any], None]


def grown(directory: Path, scene: str) -> dict[str, float]:
    """Write the first generations, none killed. Returns how many seconds a phase takes."""
    with process(go_on, directory, scene, 0, GROWTH) as (_, connection):
        took: dict[str, list[float]] = {phase: [] for phase in PHASES}
        phase, began = connection.recv()[0], time.perf_counter()
        try:
            while True:
                (following, _), now = connection.recv(), time.perf_counter()
                took.get(phase, []).append(now - began)
                phase, began = following, now
        except EOFError:
            pass
    return {phase: median(seconds) for phase, seconds in took.items()}


def cut_short(
    directory: Path, scene: str, life: int, *, took: dict[str, float], chance: random.Random, end: End
) -> list[tuple[str, int]]:
    """End a process at a random moment of a random phase of its first or second generation. Returns what it told."""
    phase, times = chance.choice(PHASES), chance.randrange(1, 3)
    with process(go_on, directory, scene, life, 1000) as (child, connection):
        told = [connection.recv()]
        while Counter(named for named, _ in told)[phase] < (1 if phase == "open" else times):
            told.append(connection.recv())
        time.sleep(chance.uniform(0, 1.2 * took[phase]))
        end(child)
        told += rest(connection)
    return told


def check(directory: Path, scene: str, expected: Expected, told: list[tuple[str, int]], life: int) -> None:
    """The directory opens as a whole commit: one that was told of, or the one that was being made."""
    done = [number for named, number in told if named == "done"]
    for number in done:
        expected.add(Generation(number, life))
    copy = directory.with_name("copy")  # what was cut short is for the next process to recover
    shutil.rmtree(copy, ignore_errors=True)  # a cut may bring back the last one
    shutil.copytree(directory, copy)
    tables = Tables(copy, SCENES[scene])
    if tables.committed != expected.at:
        # done as far as the drive is concerned, and killed before it could tell
        assert told[-1] == ("commit", tables.committed.number)
        expected.add(Generation(expected.at.number + 1, life))
    assert tables.committed == expected.at
    assert expected.wrong_rows(tables) == [0] * len(tables.tiers)
    tables.close()
    shutil.rmtree(copy)


def cut_short_many_times(directory: Path, scene: str, times: int, end: End) -> None:
    """Let tables grow, then cut process after process short and see what the directory opens as."""
    chance = random.Random(f"{SEED} {scene} {times}")
    expected = Expected(SCENES[scene])
    took = grown(directory, scene)
    for number in range(1, GROWTH + 1):
        expected.add(Generation(number, 0))
    size = log_bytes(directory)
    during: Counter[str] = Counter()
    both, life = {"write", "commit"}, 0
    while life < times or (times >= MANY and not both <= set(during) and life < 4 * times):
        life += 1
        told = cut_short(directory, scene, life, took=took, chance=chance, end=end)
        during[told[-1][0]] += 1
        try:
            check(directory, scene, expected, told, life)
        except BaseException as error:
            error.add_note(f"seed {SEED}, end {life} of {times}, told {told[-4:]}")
            raise
    print(f"{scene}: last told {dict(during)}, at {expected.at}")  # noqa: T201 - shown where the test fails
    # free positions were used: the log did not grow by what was written
    assert log_bytes(directory) < 1.5 * size
    if times >= MANY:
        assert expected.at.number > GROWTH
        assert both <= set(during)


def kill(child: Any) -> None:
    child.kill()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("scene", "times"), [("512 bytes", 5), *(pytest.param(scene, MANY, marks=pytest.mark.slow) for scene in SCENES)]
)
def test_killed_at_any_moment_the_directory_opens_at_a_whole_commit(tmp_path: Path, scene: str, times: int) -> None:
    cut_short_many_times(tmp_path / "tables", scene, times, kill)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_file_system_shut_down_at_any_moment_opens_at_a_whole_commit(tmp_path: Path, scene: str) -> None:
    with small_drive(tmp_path, 64 << 20) as drive:

        def end(child: Any) -> None:
            drive.cut_power()
            child.kill()
            child.join(60)
            drive.unmount()
            drive.mount()

        cut_short_many_times(drive.path / "tables", scene, MANY, end)


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/rows.bin"))


class Cuts:
    """Looks at a directory before and after everything that orders writes, and at what a power cut then would leave."""

    def __init__(self, directory: Path, scene: str, chance: random.Random, share: float) -> None:
        self.drive = CachingDrive(directory)
        self.returned, self.coming = Expected(SCENES[scene]), Expected(SCENES[scene])
        self.opened: Counter[bool] = Counter()
        """Cuts, by whether the commit counted that was being made."""
        self._left = directory.with_name("left")
        self._tables = SCENES[scene]
        self._chance = chance
        self._share = share
        self._looking = False

    def maybe(self) -> None:
        """A cut may come now."""
        self.drive.look()
        if self._chance.random() < self._share:
            self._looking = True
            self._cut()
            self._looking = False

    def around(self, original: Callable[..., object]) -> Callable[..., object]:
        """A function before and after which a cut may come."""

        def call(*arguments: object) -> object:
            if self._looking:
                return original(*arguments)
            self.maybe()
            done = original(*arguments)
            self.maybe()
            return done

        return call

    def _cut(self) -> None:
        self.drive.leave(self._left, self._chance)
        tables = Tables(self._left, self._tables)
        assert tables.committed in (self.returned.at, self.coming.at)
        counted = tables.committed == self.coming.at
        expected = self.coming if counted else self.returned
        assert expected.wrong_rows(tables) == [0] * len(tables.tiers)
        tables.close()
        shutil.rmtree(self._left)
        self.opened[counted and self.coming.at != self.returned.at] += 1


@pytest.mark.parametrize("scene", SCENES)
def test_drive_with_a_cache_that_loses_power_opens_at_a_whole_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    directory = tmp_path / "tables"
    directory.mkdir()
    cuts = Cuts(directory, scene, random.Random(f"{SEED} {scene}"), 0.04 if IN_CI else 0.1)
    # the drive of this test is a model: no other need be waited for
    monkeypatch.setattr(os, "fsync", cuts.drive.synced)
    for owner, name in ((os, "fsync"), (os, "ftruncate"), (Path, "replace"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, cuts.around(getattr(owner, name)))
    try:
        for number in range(1, GROWTH + 3):
            if number in (1, GROWTH):
                tables = Tables(directory, SCENES[scene])
            generation = Generation(number, 0)
            tables.write(generation, cuts.maybe)
            cuts.coming.add(generation)
            tables.commit(generation)
            cuts.returned.add(generation)
            cuts.maybe()
            if number == GROWTH - 1:
                tables.close()
    except BaseException as error:
        error.add_note(f"seed {SEED}")
        raise
    finally:
        cuts.drive.close()
    print(f"{scene}: {cuts.opened}")  # noqa: T201 - shown where the test fails
    assert cuts.opened[False]
    tables.close()
