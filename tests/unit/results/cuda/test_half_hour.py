"""The steps of the page on CUDA devices run in its order, within the time, and go on where they stopped."""

import json
from pathlib import Path

import half_hour
import pytest

PAGE = """
```sh
python no_step.py
```

## Steps

1. First

   ```sh
   python -c "print('one')"
   python -c "print('two'); raise SystemExit(3)"
   ```
2. Second

   ```sh
   python -c "print('three')"  # at most 4 min
   {last}
   ```
"""
SLEEPS = (
    """python -c "import pathlib, time; p = pathlib.Path('{mark}'); f = p.exists(); p.touch(); f or time.sleep(60)" """
)
MINUTES = "0.04"
"""Long enough for all steps but one that sleeps."""


class HalfHour:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.page(SLEEPS.format(mark=folder / "mark"))

    def page(self, last: str) -> None:
        (self.folder / "page.md").write_text(PAGE.format(last=last))

    def run(self, *options: str) -> tuple[int, list[str]]:
        """Exit code, and what was said of each step."""
        code = half_hour.main(["--page", str(self.folder / "page.md"), "--out", str(self.folder), *options])
        return code, [line for line in self._capsys.readouterr().out.splitlines() if line[:1].isdigit()]

    @property
    def ended(self) -> list[str]:
        return list(json.loads((self.folder / "steps.json").read_text()).values())

    def printed(self, step: int) -> list[str]:
        return (self.folder / "logs" / f"step{step:02}.log").read_text().splitlines()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> HalfHour:
    monkeypatch.setattr(half_hour, "GRACE_S", 0.5)
    monkeypatch.setattr(half_hour, "LEAST_S", 0.2)
    return HalfHour(tmp_path, capsys)


def test_a_run_goes_on_where_the_time_ended_it_and_past_what_failed(run: HalfHour) -> None:
    code, _ = run.run("--minutes", MINUTES)
    assert code == 1
    assert run.ended == ["ended", "failed: exit code 3", "ended", "cut off"]
    code, said = run.run("--minutes", MINUTES)
    assert code == 1  # for one failed
    assert run.ended == ["ended", "failed: exit code 3", "ended", "ended"]
    assert [line for line in said if ", after" in line] == [said[-1]]  # the last step alone ran again
    assert run.printed(1) == ["one"]
    assert run.printed(2) == ["two"]
    run.run("--minutes", MINUTES, "--again")
    assert run.printed(2) == ["two", "two"]
    assert run.printed(1) == ["one"]


def test_a_step_that_takes_longer_than_its_page_allows_has_failed(run: HalfHour) -> None:
    run.page("python -c 'import time; time.sleep(60)'  # at most 0 min")
    run.run("--minutes", MINUTES)
    assert run.ended[-1] == "failed: not done in 0 minutes"


def test_without_time_or_as_a_rehearsal_nothing_runs(run: HalfHour) -> None:
    for options in (["--minutes", "0"], ["--dry-run"]):
        code, said = run.run(*options)
        assert code == 1
        assert len(said) == 4
        assert "no_step" not in "".join(said)
    assert not (run.folder / "steps.json").exists()
    assert not (run.folder / "logs").exists()


def test_the_page_itself_has_steps_for_programs_that_are_there(run: HalfHour) -> None:
    page = (half_hour.ROOT / "docs" / "cuda.md").read_text()
    steps = half_hour.steps_of(page)
    assert len(steps) > 8
    for step in steps:
        words = step.command.split()
        assert words[0] == "python"
        assert words[1] == "-m" or (half_hour.ROOT / words[1]).exists()
