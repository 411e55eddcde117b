"""The figures of a GPU on its page are those of the records."""

import json
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.store import RecordStore
from suite.run.cell.feed import open_workload
from suite.simulate.models.fbgemm import FbgemmCacheModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.ours import FreqCacheModel
from suite.simulate.trace import WorkloadTrace
from suite.tables.rows import Row, merged_rows

RESULTS = Path(__file__).resolve().parents[4] / "results"
PAGE = (RESULTS.parent / "docs" / "cuda.md").read_text(encoding="utf-8")
SAID = " ".join(PAGE.split())
OPTIMIZERS = ("sgd", "rowwise_adagrad")


def rows(folder: str) -> dict[str, Row]:
    """The row of every system, all of one setting."""
    records, problems = RecordStore(RESULTS / folder).load_all()
    assert not problems
    (group,) = group_records(records)
    return {row.system: row for row in merged_rows(group)}


def alone(row: Row) -> float:
    (measurement,) = row.measurements
    return measurement.timing.alone_steps_per_s


def lines(marker: str) -> list[str]:
    """The lines of a table of the page, without its head."""
    return PAGE.split(f"<!-- {marker}: begin -->\n")[1].split(f"<!-- {marker}: end -->")[0].splitlines()[2:]


def test_every_row_of_the_table_is_that_of_the_records() -> None:
    now, before = rows("cuda/h200"), rows("cuda/h200/waiting")
    made = []
    for name in sorted(before, key=lambda name: -before[name].ratio.value):
        row, early = now.get(name), before[name]
        pace = [f"{alone(row):.1f}", f"{alone(row) / alone(now['full_gpu']):.2f}"] if row else ["n/a", "n/a"]
        ratio = early.ratio
        interval = "" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
        shown = row or early
        share = shown.numbers.get("misses_over_optimum")
        cells = [
            f"`{name}`",
            *pace,
            f"{ratio.value:.2f}{interval}",
            f"{early.numbers['embedding_ratio'].value:.2f}",
            f"{shown.numbers['device_reserved_bytes'] / 1e9:.2f}",
            f"{100 * shown.numbers['hit_rate']:.1f} %",
            "n/a" if share is None else f"{100 * share:.0f} %",
        ]
        made.append(f"| {' | '.join(cells)} |")
    assert lines("h200") == made


def test_rates_are_those_of_the_record() -> None:
    rates: dict[str, dict[tuple[str, str], float]] = {}
    for one in json.loads((RESULTS / "cuda" / "h200" / "exchange_rates.json").read_text())["rates"]:
        rates.setdefault(one["way"], {})[one["optimizer"], one["direction"]] = one["gb_per_s"]
    names = {
        "copy": "a block of pinned memory",
        "staged": "`freq_cache`",
        "torch": "`freq_cache[tier=pinned]`, in alone",
        "exchange, 16": "`freq_cache[copy_engine=device,tier=pinned]`, 16 programs",
        "exchange, 32": "the same kernel in 32 programs",
    }
    made = []
    for way, name in names.items():
        figures = [f"{rates[way][optimizer, to]:.1f}" for optimizer in OPTIMIZERS for to in ("in", "out")]
        made.append(f"| {name} | {' | '.join(figures)} |")
    assert lines("rates") == made


def test_what_the_page_says_of_a_step_is_in_the_profiles() -> None:
    folder = RESULTS / "cuda" / "h200"
    now, before = (json.loads((part / "step_profile.json").read_text()) for part in (folder, folder / "waiting"))
    device = now["device"]
    planning = [
        sum(one["ms"] for one in profile["host"] if one["thread"] == "cache-planning") for profile in (now, before)
    ]
    facts = json.loads((RESULTS / "cuda" / "h200" / "facts.json").read_text())
    dense = [facts[f"dense_step_ms matmul_precision={precision}"] for precision in ("high", "highest")]
    for words in (
        f"took {now['step_ms']:.2f} ms in that last run, of which kernels take {device['kernels_ms']:.2f} and the "
        f"device idles {device['idle_ms']:.2f}; it took {before['step_ms']:.2f} and idled "
        f"{before['device']['idle_ms']:.2f} before",
        f"takes {planning[0]:.1f} ms of the planning thread ({planning[1]:.1f} before)",
        f"in TF32 take {dense[0]:.1f} ms ({dense[1]:.1f} in fp32",
    ):
        assert words in SAID
    assert sum(device[name] for name in ("copies_in_exposed_ms", "copies_out_exposed_ms")) < 0.1  # hidden
    scores = sorted(rows(folder)["full_gpu"].auroc for folder in ("cuda/h200", "cuda/h200/waiting"))
    assert "two runs of `full_gpu` ({:.4f}, {:.4f})".format(*scores) in SAID


def test_rows_differed_by_what_the_protocol_says() -> None:
    found = [row for folder in ("cuda/h200", "cuda/h200/waiting") for row in rows(folder).values()]
    checks = [check for row in found for record in row.records for check in record.verification.checks]
    most = max(check.max_difference for check in checks if check.name.startswith("rows after training"))
    protocol = " ".join((RESULTS.parent / "docs" / "protocol.md").read_text().split())
    assert f"rows of four systems differed by up to {100 * most:.0f} %" in protocol
    traffic = [row.measurements[0].traffic for row in found]
    assert {round(one.unique_ids / one.steps, -3) for one in traffic} == {64_000}
    assert "A batch has 64,000 distinct rows" in SAID


def test_a_virtual_device_lacks_the_bytes_that_its_page_says() -> None:
    cells = json.loads((RESULTS / "cuda" / "h200" / "virtual_memory.json").read_text())["cells"]
    virtual = {one["system"].replace("memory=managed,", "").replace("[memory=managed]", ""): one for one in cells}
    more: dict[str, list[float]] = {"allocated": [], "reserved": [], "used": []}
    for folder in ("cuda/h200", "cuda/h200/waiting"):
        for name, row in rows(folder).items():
            (memory,) = (one.memory for one in row.measurements)
            for kind in ("allocated", "reserved"):
                real = getattr(memory, f"device_{kind}_bytes")
                more[kind].append((real - virtual[name][f"peak_{kind}_bytes"]) / 2**20)
            more["used"].append((memory.device_used_bytes - memory.device_reserved_bytes) / 2**30)
    page = " ".join((RESULTS.parent / "docs" / "virtual-cuda.md").read_text().split())
    allocated, reserved = ([f"{end(more[kind]):.0f}" for end in (min, max)] for kind in ("allocated", "reserved"))
    assert f"{' to '.join(allocated)} MiB higher allocated, and {' to '.join(reserved)} MiB reserved" in page
    assert {f"{one:.1f}" for one in more["used"]} == {"0.8"}
    assert "another 0.8 GiB" in page


@pytest.mark.parametrize(
    ("folder", "system", "model", "parameters"),
    [
        ("cuda/h200", "freq_cache[look_ahead=4]", FreqCacheModel, {"policy": "static", "look_ahead": "4", "ram": "0"}),
        ("cuda/h200/waiting", "fbgemm_uvm_caching", FbgemmCacheModel, {"policy": "lru", "prefetch": "off"}),
    ],
)
def test_simulated_misses_are_those_that_the_gpu_counted(
    folder: str, system: str, model: type, parameters: dict[str, str]
) -> None:
    row = rows(folder)[system]
    cell, (measurement,) = row.cell, row.measurements
    trace = WorkloadTrace(open_workload(cell), prefix=cell.frequency_prefix)
    span = Span(counted_from=cell.train_steps, stop=cell.steps)
    tally = replay(model(Setting(trace=trace, span=span, slots=int(trace.rows * cell.cache_ratio)), parameters))
    names = ("unique_ids", "unique_misses", "lookups")
    assert [getattr(tally, name) for name in names] == [getattr(measurement.traffic, name) for name in names]
    page = " ".join((RESULTS.parent / "docs" / "simulation.md").read_text().split())
    assert f"{tally.unique_misses:,}" in page
