"""What the page says in sentences and commands."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from markupsafe import escape
from typer.testing import CliRunner

from suite.records.groups import group_records
from suite.records.record import Cell
from suite.report.page.commands import commands
from suite.report.page.statements import device_statement, facets, failures, verdicts
from suite.run.console.command import app
from tests.unit.suite.fabricate import cell, cpu_run, environment, gpu_run, record, rounds
from tests.unit.suite.report.page_texts import made


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (gpu_run(), ()),
        (cpu_run()[:2], ("Everything on this page was measured on a CPU.", "host-resident")),
        ([*gpu_run(), *cpu_run()], ("1 of 2 comparisons was measured on a CPU.",)),
    ],
)
def test_what_a_cpu_cannot_claim_is_said_where_there_is_one(records: list[Any], said: tuple[str, ...]) -> None:
    statement = " ".join(device_statement(tuple(group_records(records))))
    assert bool(statement) == bool(said)
    assert all(words in statement for words in said)


def test_failures_are_listed_with_rounds_phase_and_reason() -> None:
    found = {failure.system: failure for failure in failures(tuple(group_records(gpu_run())))}
    assert found.keys() == {"reference", "stranger|odd"}
    assert found["reference"].rounds == (1, 2)
    assert found["reference"].how == "oom_device in phase build: needs 17.3 GB, the device has 16 GB"
    assert "4 of" not in made(rounds("cache", [1.0, 2.0]))
    assert "0 of 2 recorded cells: every one ended <code>ok</code>." in made(rounds("cache", [1.0, 2.0]))


def test_settings_and_machines_that_read_alike_are_told_apart() -> None:
    other_rate = record("a", setting={"lr": 0.2})
    other_machine = record("a", where=environment(machine="another", threads=8))
    named = facets(group_records([record("a"), other_rate, other_machine])).values()
    settings = {one["setting"] for one in named}
    devices = {one["device"] for one in named}
    assert settings == {
        f"synthetic, full, cache ratio 1 %, setting {cell('a', **changes).setting}" for changes in ({}, {"lr": 0.2})
    }
    assert devices == {
        "NVIDIA H100 80GB HBM3, machine gpumachine, 16 threads",
        "NVIDIA H100 80GB HBM3, machine another, 8 threads",
    }
    (alone,) = facets(group_records([record("a")])).values()
    assert alone["setting"] == "synthetic, full, cache ratio 1 %"


def test_the_newest_record_dates_the_page() -> None:
    late = record("late", started_at="2027-02-03T04:05:06+00:00")
    text = made([*gpu_run(), late])
    assert "<dd>2027-02-03</dd>" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "--systems full_gpu,freq_cache[policy=lfu,tier=file] --workloads avazu,criteo_kaggle@drift --scale smoke",
        "--systems freq_cache --workloads avazu --scale full --device-budget 64MiB,256MiB --optimizer adam --seed 7",
        "--systems freq_cache --workloads avazu --scale smoke --steps 8 --batch-size 64 --lr 0.25 --embedding-dim 8 "
        "--frequency-prefix 0.5",
        "--systems full_gpu[sharding=row_wise] --workloads avazu --scale smoke --ranks 2",
    ],
)
def test_commands_plan_the_cells_that_they_are_made_from(asked: str) -> None:
    cells = planned(asked)
    records = [record().model_copy(update={"cell": one, "key": str(at)}) for at, one in enumerate(cells)]
    (command,) = commands(group_records(records))
    assert command.startswith("python run_bench.py ")
    again = planned(" ".join(command.split()[2:]))
    assert sorted(one.identity() for one in again) == sorted(one.identity() for one in cells)
    assert f"<code>{escape(command)}</code>" in made(records)


def test_ranks_and_tf32_are_in_the_command_and_in_the_setting() -> None:
    ranks = [{"ranks": 2}, {"ranks": 4, "nodes": 2, "rendezvous": "node0:29400"}, {"tf32": True}, {}]
    groups = group_records(record("full_gpu", setting=changes) for changes in ranks)
    plain, *others = sorted(commands(groups), key=len)
    added = [" ".join(word for word in line.split() if word not in plain.split()) for line in others]
    assert added == ["--tf32", "--ranks 2", "--ranks 4 --nnodes 2 --rdzv-endpoint node0:29400"]
    settings = {one["setting"].removesuffix(", cache ratio 1 %") for one in facets(groups).values()}
    assert settings == {f"synthetic, full{words}" for words in (", 2 ranks", ", 4 ranks", ", TF32", "")}


def test_ranks_have_no_verdict_and_approximate_systems_have_that_of_their_table() -> None:
    on_ranks = [record("full_gpu", setting={"ranks": ranks}) for ranks in (1, 2)]
    assert verdicts(tuple(group_records(on_ranks))) == ()
    assert "<dd></dd>" not in made(on_ranks)
    hashed = record("hashed")
    assert hashed.measurement is not None
    inexact = hashed.model_copy(update={"measurement": hashed.measurement.model_copy(update={"exact": False})})
    (said,) = verdicts(tuple(group_records([record("full_gpu"), inexact])))
    assert said.sentences[0].startswith("Nothing can be said of what fewer bytes cost")


def planned(options: str) -> list[Cell]:
    result = CliRunner().invoke(app, [*shlex.split(options), "--device", "cpu", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    known = Cell.model_fields.keys()
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [Cell(**{name: value for name, value in line.items() if name in known}) for line in lines]
