"""The figures of a GPU on its page are those of the records."""

import json
import re
from pathlib import Path

import pytest

from suite.records.groups import group_records
from suite.records.scales import FULL
from suite.records.store import RecordStore
from suite.run.cell.feed import open_workload
from suite.simulate.models.fbgemm import FbgemmCacheModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.ours import FreqCacheModel
from suite.simulate.trace import WorkloadTrace
from suite.tables.rows import Row, merged_rows
from workloads.schema import SCHEMAS

RESULTS = Path(__file__).resolve().parents[4] / "results"
PAGE = (RESULTS.parent / "docs" / "cuda.md").read_text(encoding="utf-8")
SAID = " ".join(PAGE.split())
OPTIMIZERS = ("sgd", "rowwise_adagrad")


H200 = RESULTS / "cuda" / "h200"
OURS = "freq_cache[look_ahead=4]"


def rows(folder: Path = H200, *, tf32: bool = False) -> dict[str, Row]:
    """The row of every system of one setting."""
    records, problems = RecordStore(folder).load_all()
    assert not problems
    (group,) = (group for group in group_records(records) if group.cell.tf32 == tf32)
    return {row.system: row for row in merged_rows(group)}


def on_kaggle() -> list[Row]:
    """The rows of all runs on Criteo Kaggle."""
    return [row for tf32 in (False, True) for row in rows(tf32=tf32).values()]


def alone(row: Row) -> float:
    (measurement,) = row.measurements
    return measurement.timing.alone_steps_per_s


def lines(marker: str) -> list[str]:
    """The lines of a table of the page, without its head."""
    return PAGE.split(f"<!-- {marker}: begin -->\n")[1].split(f"<!-- {marker}: end -->")[0].splitlines()[2:]


def test_every_row_of_the_table_is_that_of_the_records() -> None:
    fp32, tf32 = rows(), rows(tf32=True)
    made = []
    for name in [*sorted(fp32, key=lambda name: -fp32[name].ratio.value), *(name for name in tf32 if name not in fp32)]:
        cells = [f"`{name}`"]
        for found in (fp32, tf32):
            ratio = found[name].ratio if name in found else None
            interval = "" if ratio is None or ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
            cells.append("n/a" if ratio is None else f"{alone(found[name]):.1f}")
            cells.append("n/a" if ratio is None else f"{ratio.value:.2f}{interval}")
        shown = fp32.get(name) or tf32[name]
        share = shown.numbers.get("misses_over_optimum")
        cells += [
            f"{shown.numbers['device_reserved_bytes'] / 1e9:.2f}",
            f"{100 * shown.numbers['hit_rate']:.1f} %",
            "n/a" if share is None else f"{100 * share:.0f} %",
        ]
        made.append(f"| {' | '.join(cells)} |")
    assert lines("h200") == made


def test_what_the_page_says_beside_the_table_is_in_the_records() -> None:
    fp32, tf32, large, avazu = rows(), rows(tf32=True), rows(H200 / "criteo_1tb"), rows(H200 / "avazu")
    earlier = rows(H200 / "without_prefetch")
    lru, prefetching, plain = "fbgemm_uvm_caching", "fbgemm_uvm_caching[prefetch=on]", "full_gpu"
    builds = [f"{sum(beside) / sum(own):.2f}" for beside, own in _turns(tf32[OURS])]
    cached, whole = large[OURS], large[plain]
    (score,) = {f"{row.auroc:.4f}" for row in on_kaggle()}
    gb, hit = (
        {name: row.numbers[what] for name, row in avazu.items()} for what in ("device_reserved_bytes", "hit_rate")
    )
    unstable, stable = json.loads((RESULTS / "streams" / "rounding_full.json").read_text())["runs"]
    assert stable["lr"] == FULL.lr["sgd"] == round(fp32[OURS].cell.lr, 6)
    for words in (
        f"our cache has {fp32[OURS].ratio.value:.2f} of full tables**, fbgemm's {fp32[prefetching].ratio.value:.2f} "
        f"with prefetch. In an earlier contest fbgemm's had {earlier[lru].ratio.value:.2f} without prefetch, and "
        f"{earlier[prefetching].ratio.value:.2f} with",
        f"in turns {tf32[OURS].ratio.value:.2f} and {tf32[prefetching].ratio.value:.2f} of full tables, alone "
        f"{alone(tf32[OURS]) / alone(tf32[plain]):.2f} and {alone(tf32[prefetching]) / alone(tf32[plain]):.2f}",
        f"A full table takes {1e3 / tf32[plain].steps_per_s:.1f} ms a step, ours {1e3 / tf32[OURS].steps_per_s:.1f} in "
        f"turns; its builds had {builds[0]}, {builds[1]} and {builds[2]} of full tables",
        f"Training waits {_waits_ms(tf32[OURS]):.1f} ms a step for plans, reads and write-backs",
        f"**AUROC** is {score} in all six runs",
        f"at {unstable['lr']} roundings alone move this model's AUROC by up to {unstable['spread']:.4f}, "
        f"at {stable['lr']} by {stable['spread']:.4f}",
        f"alone: `full_gpu` {alone(avazu[plain]):.1f} it/s with {gb[plain] / 1e9:.2f} GB of the device, fbgemm's cache "
        f"with prefetch {alone(avazu[prefetching]):.1f} with {gb[prefetching] / 1e9:.2f} GB and a hit rate of "
        f"{100 * hit[prefetching]:.1f} %, ours with look-ahead 4 {alone(avazu[OURS]):.1f} with {gb[OURS] / 1e9:.2f} GB "
        f"and {100 * hit[OURS]:.1f} %",
        f"alone {alone(cached):.1f} it/s with {cached.numbers['device_reserved_bytes'] / 1e9:.2f} GB of the device and "
        f"{cached.numbers['host_peak_rss_bytes'] / 1e9:.1f} GB of the host, `full_gpu` {alone(whole):.1f} it/s with "
        f"{whole.numbers['device_reserved_bytes'] / 1e9:.2f} GB; hit rate {100 * cached.numbers['hit_rate']:.1f} %",
        "{:.2f} of full tables, where fbgemm's cache has {:.2f} with prefetch, in fp32; in the earlier contest ours "
        "{:.2f}, fbgemm's {:.2f} with and {:.2f} without".format(
            *(fp32[name].numbers["embedding_ratio"].value for name in (OURS, prefetching)),
            *(earlier[name].numbers["embedding_ratio"].value for name in (OURS, prefetching, lru)),
        ),
    ):
        assert words in SAID, words


def test_the_first_page_says_what_the_records_say() -> None:
    fp32, tf32, prefetching = rows(), rows(tf32=True), "fbgemm_uvm_caching[prefetch=on]"
    ours, theirs = (
        (f"{fp32[name].ratio.value:.2f}", "{0.value:.2f} [{0.low:.2f}, {0.high:.2f}]".format(tf32[name].ratio))
        for name in (OURS, prefetching)
    )
    gb = [f"{fp32[name].numbers['device_reserved_bytes'] / 1e9:.2f}" for name in (OURS, "full_gpu")]
    contest = rows(H200 / "without_prefetch")
    earlier = [f"{contest[name].numbers['embedding_ratio'].value:.2f}" for name in (OURS, "fbgemm_uvm_caching")]
    embeddings = [f"{fp32[name].numbers['embedding_ratio'].value:.2f}" for name in (OURS, prefetching)]
    assert (
        f"with {gb[0]} of {gb[1]} GB our cache trains at {ours[0]} of full tables in fp32 and at {ours[1]} in TF32, "
        f"fbgemm's with prefetch at {theirs[0]} and {theirs[1]}; in the fp32 embedding step alone ours has "
        f"{embeddings[0]}, fbgemm's {embeddings[1]} with prefetch, in an earlier contest ours {earlier[0]}, fbgemm's "
        f"{earlier[1]} without"
    ) in " ".join((RESULTS.parent / "README.md").read_text(encoding="utf-8").split())


def test_no_row_that_was_compared_differed_from_those_of_full_tables() -> None:
    found = {}
    for path in H200.rglob("records/*.json"):
        measured = json.loads(path.read_text())
        for check in measured["verification"]["checks"]:
            if check["name"] == "rows after training, beside full_gpu":
                found.setdefault(measured["cell"]["system"], set()).add(check["max_difference"])
    assert found == {name: {0.0} for name in ("fbgemm_uvm_caching", "fbgemm_uvm_caching[prefetch=on]", OURS)}
    bitwise = json.loads((H200 / "bitwise.json").read_text())["steps"]
    assert (
        "on an NVIDIA H200 rows of three caches did not differ from those of `full_gpu` at all (Criteo Kaggle, scale "
        f"`full`), and [{bitwise} losses]"
    ) in " ".join((RESULTS.parent / "docs" / "protocol.md").read_text(encoding="utf-8").split())


def test_losses_and_rows_of_our_cache_are_those_of_full_tables_bit_for_bit() -> None:
    found = json.loads((H200 / "bitwise.json").read_text())["systems"]
    assert set(found) == {"full_gpu", "freq_cache", OURS}
    ((losses, _rows),) = {(tuple(one["losses"]), one["rows"]) for one in found.values()}
    assert f"{len(losses)} steps in a fixed order" in SAID
    assert f"so that {found[OURS]['late_batches']} batches of look-ahead waited for rows" in SAID


def test_what_a_dataset_needs_is_in_the_records() -> None:
    cells = json.loads((RESULTS / "device_memory" / "memory.json").read_text())["cells"]
    gib = {
        (cell["system"], cell["workload"]): f"{cell['peak_reserved_bytes'] / 2**30:.1f} GiB"
        for cell in cells
        if (cell["optimizer"], cell["cache_ratio"], cell["status"]) == ("rowwise_adagrad", 0.01, "ok")
    }
    for workload in ("avazu", "criteo_kaggle", "criteo_1tb"):
        assert re.search(rf"^\| `{workload}` \|.*\| {gib['full_gpu', workload]} \|[^|]*\|$", PAGE, re.MULTILINE)
    assert f"{gib['cpu_embeddings', 'criteo_kaggle']} for the dense layers and activations" in SAID
    parsed = json.loads((RESULTS / "microbench" / "benchmark_cpu.json").read_text())["benchmarks"]
    (found,) = (one for one in parsed if one["name"] == "test_parse[criteo_kaggle]")
    rate = found["extra_info"]["units"] / found["stats"]["median"]
    assert f"Preparing parses {rate / 1e6:.1f} million rows of Criteo per second and core" in SAID
    schema = SCHEMAS["criteo_1tb"]
    hours = (schema.train_rows + schema.validation_rows + schema.test_rows) / rate / 3600
    assert f"which for `criteo_1tb` alone are {hours:.1f} hours of one core" in SAID


def test_logs_of_the_gpu_say_what_the_page_says() -> None:
    run, tests, smoke = ((H200 / f"{name}.log").read_text() for name in ("run", "pytest", "smoke"))
    ended = [int(minutes) * 60 + int(seconds) for minutes, seconds in re.findall(r"ok in 0:(\d\d):(\d\d)", run)]
    assert f"four systems on `criteo_kaggle` took {sum(ended) / 60:.0f} minutes for cells of 600 steps" in SAID
    assert len(ended) == 4
    (turns,) = set(re.findall(r"turns of 4 systems x criteo_kaggle: done in 0:0(\S+)", run))
    assert f"and {turns} for turns" in SAID
    (passed,) = re.findall(r"(\d+) passed", tests)
    assert f"[{passed} passed]" in SAID
    assert f"[{len(re.findall(' ok in ', smoke))} systems](../results/cuda/h200/smoke.log)" in SAID


def _turns(row: Row) -> list[tuple[list[float], list[float]]]:
    (record,) = row.records
    return list(zip(record.turns.baseline_s, record.turns.system_s, strict=True))


def _waits_ms(row: Row) -> float:
    """Milliseconds a step that training waited for the cache's threads while traffic was counted."""
    (measurement,) = row.measurements
    traffic = measurement.traffic
    return 1e3 * (traffic.planning_wait_s + traffic.fetch_wait_s + traffic.write_back_wait_s) / traffic.steps


def test_rates_are_those_of_the_record() -> None:
    rates: dict[str, dict[tuple[str, str], float]] = {}
    for one in json.loads((H200 / "exchange_rates.json").read_text())["rates"]:
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


def test_no_row_differed() -> None:
    everything = [*on_kaggle(), *rows(H200 / "without_prefetch").values()]
    compared = {
        (row.system, check.max_difference)
        for row in everything
        for record in row.records
        for check in record.verification.checks
        if check.name.startswith("rows after training")
    }
    caches = {OURS, "fbgemm_uvm_caching", "fbgemm_uvm_caching[prefetch=on]"}
    assert {(system, 0.0) for system in caches} <= compared <= {(system, 0.0) for system in caches | {"full_gpu"}}
    traffic = [row.measurements[0].traffic for row in on_kaggle()]
    assert {round(one.unique_ids / one.steps, -3) for one in traffic} == {64_000}


def test_a_virtual_device_lacks_the_bytes_that_its_page_says() -> None:
    cells = json.loads((H200 / "virtual_memory.json").read_text())["cells"]
    virtual = {one["system"].replace("memory=managed,", "").replace("[memory=managed]", ""): one for one in cells}
    more: dict[str, list[float]] = {"allocated": [], "reserved": [], "used": []}
    for name, row in rows().items():
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
    ("system", "model", "parameters"),
    [
        (OURS, FreqCacheModel, {"policy": "static", "look_ahead": "4", "ram": "0"}),
        ("fbgemm_uvm_caching", FbgemmCacheModel, {"policy": "lru", "prefetch": "off"}),
    ],
)
def test_simulated_misses_are_those_that_the_gpu_counted(system: str, model: type, parameters: dict[str, str]) -> None:
    row = rows(H200 / "without_prefetch")[system]
    cell, (measurement,) = row.cell, row.measurements
    trace = WorkloadTrace(open_workload(cell), prefix=cell.frequency_prefix)
    span = Span(counted_from=cell.train_steps, stop=cell.steps)
    tally = replay(model(Setting(trace=trace, span=span, slots=int(trace.rows * cell.cache_ratio)), parameters))
    names = ("unique_ids", "unique_misses", "lookups")
    assert [getattr(tally, name) for name in names] == [getattr(measurement.traffic, name) for name in names]
    page = " ".join((RESULTS.parent / "docs" / "simulation.md").read_text().split())
    assert f"{tally.unique_misses:,}" in page


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (
            "",
            "{device}, {cores} cores, torch {torch}, fbgemm {fbgemm}: Criteo Kaggle, synthetic, at its published size "
            "({rows:.1f} million rows of {row_bytes} bytes, batch {batch:,}, SGD), {cached:g} % of the rows cached, "
            "{steps} steps, one run.",
        ),
        ("", "in all six runs, at a learning rate of {lr}: at"),
        ("", "tables/comparison.md), commit {commit})"),
        ("without_prefetch", "without_prefetch), commit {commit})"),
        (
            "avazu",
            "row-wise Adagrad, fp32, {cached:g} % cached ([records](../results/cuda/h200/avazu), commit {commit})",
        ),
        (
            "criteo_1tb",
            "at its published size, {table_gb:.0f} GB of rows, {cached:g} % cached ([records]"
            "(../results/cuda/h200/criteo_1tb), commit {commit})",
        ),
    ],
)
def test_settings_beside_the_figures_are_those_of_the_records(folder: str, words: str) -> None:
    records, _ = RecordStore(H200 / folder).load_all()
    said = set()
    for record in records:
        cell, environment = record.cell, record.environment
        versions = {name: version.split("+")[0].rpartition(".")[0] for name, version in environment.packages.items()}
        table_rows = SCHEMAS[cell.workload].table_rows
        said.add(
            words.format(
                device=environment.gpu,
                cores=environment.cores,
                torch=versions["torch"],
                fbgemm=versions["fbgemm-gpu"],
                rows=table_rows / 1e6,
                row_bytes=4 * cell.embedding_dim,
                batch=cell.batch_size,
                cached=100 * (cell.cache_ratio or 0),
                steps=cell.steps,
                lr=cell.lr,
                commit=(environment.commit or "")[:8],
                table_gb=table_rows * 4 * cell.embedding_dim / 1e9,
            )
        )
        assert cell.optimizer == ("rowwise_adagrad" if folder == "avazu" else "sgd")
    (one,) = said
    assert one in SAID
