"""What `--ranks` may be, and what is planned for it."""

import json

import pytest

from systems.selection import ALL_ON_RANKS
from tests.unit.suite.run.console.command_scenes import TINY, call


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ranks", 3], "--ranks: 3 is out of range, it must be a power of two, 64 at most"),
        (["--ranks", 0], "--ranks: 0 is out of range"),
        (["--ranks", 64], "64 ranks cannot share a batch of 32"),
        (["--ranks", 2, "--nnodes", 4], "2 ranks are not to be had from 4 machines"),
        (["--ranks", 4, "--nnodes", 2], "give --rdzv-endpoint host:port"),
        (["--nnodes", 2], "--nnodes and --rdzv-endpoint are for ranks: give --ranks"),
        (["--ranks", 2, "--device-budget", "1MiB"], "--ranks takes a --cache-ratio"),
        (["--ranks", 2, "--tier", "disk"], "--ranks takes a --cache-ratio"),
        (["--ranks", 2, "--systems", "hot_split"], "hot_split cannot be spread over ranks: with --ranks give full_gpu"),
        (["--systems", "full_gpu[sharding=row_wise]"], "full_gpu has no parameter 'sharding'"),
    ],
)
def test_options_that_cannot_be_are_refused_with_the_remedy(tmp_path, words, says):
    result = call(*TINY, "--workloads", "avazu", "--out", tmp_path, "--dry-run", *words)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_all_on_ranks_is_what_ranks_can_share(tmp_path):
    result = call(*TINY, "--workloads", "avazu", "--ranks", 2, "--out", tmp_path, "--dry-run", "--json")
    cells = [json.loads(line) for line in result.output.splitlines()]
    assert [(cell["system"], cell["ranks"]) for cell in cells] == [(name, 2) for name in ALL_ON_RANKS]


@pytest.mark.parametrize("words", [[], ["--ranks", 2]])
def test_under_a_launcher_of_several_processes_it_refuses_in_a_sentence(tmp_path, monkeypatch, words):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = call(*TINY, "--out", tmp_path, "--dry-run", *words)
    assert result.exit_code == 2
    assert "to one process, which starts the ranks" in " ".join(result.output.split())
