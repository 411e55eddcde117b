"""Numbers, tables and sentences of the pages on simulation, device memory and workloads are those of their records."""

import importlib
import itertools
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from suite.__main__ import app
from suite.advise.command import Advice
from suite.records.groups import published_rows
from suite.records.scales import FULL, LEAD_STEPS, SMALL
from suite.records.store import RecordStore
from suite.run.turns.groups import TURN_S
from suite.simulate.models.registry import parse_policies
from suite.simulate.results import Simulation
from suite.tables.verdict import AUROC_TOLERANCE
from tests.docs.commands import ROOT, module_of
from workloads.manifest import PARTS, array_shape
from workloads.schema import SCHEMAS

TABLES = module_of(ROOT / "docs" / "figures" / "simulation_tables.py")
MEMORY = module_of(ROOT / "results" / "device_memory" / "memory_table.py")
MEMORY_ROWS = MEMORY.rows()


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def said(path: Path) -> str:
    """The words of a page, whatever its lines."""
    return " ".join(path.read_text(encoding="utf-8").split())


def record(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize(("name", "lines"), [("epoch", 7), ("optimal", 20), ("planner", 10)])
def test_the_table_of_a_page_is_that_of_its_record(name: str, lines: int) -> None:
    path, table = TABLES.TABLES[name]
    _, on_page, _ = TABLES.block(path.read_text(encoding="utf-8"), name)
    assert on_page == table()
    assert len(on_page.splitlines()) > lines


def test_the_page_says_what_our_division_saves_beside_torchrecs_plan() -> None:
    path, _ = TABLES.TABLES["planner"]
    rows = [line.split("|")[5:8] for line in path.read_text(encoding="utf-8").splitlines() if line.count("|") == 9]
    counts = [[float(cell.replace(",", "")) for cell in row] for row in rows if row[0].strip()[:1].isdigit()]
    saved = sorted(100 * (1 - ours / has) for has, _, ours in counts)
    assert len(saved) == 9
    found = record("simulate/torchrec_planner")
    setting = f"rows of {found['dim']} fp32 weights, batch {found['batch_size']:,}, caches that start empty"
    warm = found["batches"] // 3
    assert f"{setting} and warm up for {warm} batches. Misses per batch, of {found['batches'] - warm}" in said(path)
    least = f"misses {saved[4]:.0f} % less in the median of these rows, and at most {saved[-1]:.0f} % less"
    assert least in said(path)


def test_the_record_of_the_page_has_every_policy_at_every_size() -> None:
    simulation = Simulation.model_validate_json(TABLES.RECORD.read_text(encoding="utf-8"))
    wanted = [str(policy) for policy in parse_policies("all")]
    assert list(simulation.configuration.policies) == wanted
    assert [row.policy for row in simulation.rows] == wanted * 7


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "methods"), [("criteo_kaggle", "50 81"), ("criteo_1tb", "42 45")])
def test_bounds_beside_the_papers_rows_are_those_of_the_advisor(workload: str, methods: str) -> None:
    options = [*("--hardware", "a100"), *("--systems", "full_gpu,freq_cache"), *("--cache-ratio", "0.01", "--json")]
    few = ["--batches", "6", "--device-memory", "1GiB"]  # bounded by the products, whatever is missed
    bounds: dict[tuple[str, float], list[str]] = {}
    for tf32 in ([], ["--tf32"]):
        done = CliRunner().invoke(app, ["advise", "--workload", workload, *options, *few, *tf32])
        for row in Advice.model_validate_json(done.stdout).rows:
            if row.published_steps_per_s is not None and row.least_s is not None:
                bounds.setdefault((row.system, row.published_steps_per_s), []).append(f"{1 / row.least_s.step:.0f}")
    cache, full = map(float, methods.split())
    for method, system, rate in (("ColossalAI", "freq_cache", cache), ("torchrec", "full_gpu", full)):
        fp32, in_tf32 = bounds[system, rate]
        assert f"| {workload} | {method} | {rate:g} | `{system}` | {fp32} | {in_tf32} |" in page("simulation")
        assert rate <= float(in_tf32)


def test_every_place_says_that_the_device_is_virtual() -> None:
    for text in (said(ROOT / "docs" / "virtual-cuda.md"), said(ROOT / "README.md")):
        assert "exact for torch's allocator, without workspaces" in text
        assert "beside the published figures: virtual device" in text
    assert MEMORY.LABEL in (ROOT / "results" / "device_memory" / "device_memory.md").read_text(encoding="utf-8")


def test_sentences_about_a_whole_epoch_are_those_of_its_record() -> None:
    found = record("simulate/epoch/simulation")
    warm, counted = (found["configuration"][name] for name in ("warmup_batches", "counted_batches"))
    misses: dict[str, list[int]] = {}
    for row in sorted(found["rows"], key=lambda row: row["slots"]):
        misses.setdefault(row["policy"], []).append(row["traffic"]["unique_misses"])
    ours = zip(misses["freq_cache[policy=lfu]"], misses["freq_cache[policy=static]"], strict=True)
    saved = [1 - lfu / static for lfu, static in ours]
    assert warm + counted == found["stream"]["batches"]
    assert found["configuration"]["cache_ratios"] == [0.003, 0.01, 0.03, 0.1]
    assert 0 <= saved[0] < 0.01 < min(saved[1:])
    words = said(ROOT / "docs" / "simulation.md")
    assert f"{warm} batches fill the caches, {counted:,} are counted" in words
    assert "never misses more, and from 1 % on clearly less:" in words


def test_bytes_of_a_prepared_row_are_those_of_its_arrays() -> None:
    per_row = {}
    for name in ("criteo_kaggle", "criteo_1tb", "avazu"):
        dense, tables = len(SCHEMAS[name].dense), len(SCHEMAS[name].categorical)
        arrays = [array_shape(part, 1, dense=dense, tables=tables) for part in PARTS]
        per_row[name] = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
    assert per_row["criteo_kaggle"] == per_row["criteo_1tb"]
    stated = f"takes {per_row['criteo_kaggle']} bytes per row for Criteo and {per_row['avazu']} for Avazu"
    assert stated in said(ROOT / "docs" / "datasets.md")


def test_samples_of_quality_records_are_those_that_pages_name() -> None:
    def cells(folder: str) -> list[Any]:
        return [json.loads(path.read_text())["cell"] for path in (ROOT / "results" / folder).glob("records/*.json")]

    exact, approximate = cells("quality"), cells("published/approximate")
    (samples,) = {(cell["train_steps"] + cell["counted_steps"]) * cell["batch_size"] for cell in exact}
    ours = [cell["system"] for cell in exact if cell["system"].startswith("freq_cache")]
    assert len(ours) == 3
    assert f"{samples / 1e6:.1f} million samples" in said(ROOT / "docs" / "protocol.md")
    assert "`freq_cache` in three variants" in said(ROOT / "docs" / "protocol.md")
    (samples,) = {(cell["train_steps"] + cell["counted_steps"]) * cell["batch_size"] for cell in approximate}
    assert len({cell["seed"] + cell["round"] for cell in approximate}) == 5
    assert f"five seeds of {samples:,} samples" in said(ROOT / "docs" / "systems.md")


def test_sizes_of_the_scales_are_those_of_the_readme() -> None:
    words = said(ROOT / "README.md")
    assert SMALL.max_rows == 1_000_000
    assert f"`small`, 1 million rows (dim {SMALL.embedding_dim}, batch {SMALL.batch_size:,}), the default" in words
    assert f"the published tables (dim {FULL.embedding_dim}, batch {FULL.batch_size:,}), the default on a GPU" in words
    cached = MEMORY.find(MEMORY_ROWS, "avazu", "colossalai_cache")["cache_ratio"]
    sizes = f"dim {FULL.embedding_dim}, batch {FULL.batch_size:,}, SGD, cache of {100 * cached:.0f} %"
    assert f"Device memory at published sizes ({sizes}), in GiB" in words


def test_turns_are_as_long_as_the_protocol_says() -> None:
    assert LEAD_STEPS == 1
    steps = (
        f"A turn is {SMALL.turn_steps} steps at scale `small`, {FULL.turn_steps} at `full`, up to four times as many"
    )
    words = f"{steps} where the baseline takes less than {TURN_S} s. One untimed step precedes"
    assert words in said(ROOT / "docs" / "protocol.md")


def test_more_training_changes_the_order_of_approximate_systems_where_the_page_says() -> None:
    records, _ = RecordStore(ROOT / "results" / "published" / "approximate").load_all()
    measured = {(record.cell.system, record.cell.round): record.measurement for record in records}
    systems, rounds = ({key[place] for key in measured} for place in (0, 1))
    parts: dict[str, list[float]] = {}
    """Mean AUROC over seeds, of every part of training and at last on the test split."""
    for system in systems:
        qualities = [found.quality for number in rounds if (found := measured[system, number]) is not None]
        assert len(qualities) == len(rounds)
        ends = [point.samples / quality.points[-1].samples for quality in qualities for point in quality.points]
        assert sorted(set(ends)) == [0.2, 0.4, 0.6, 0.8, 1.0]
        series = [[*(point.auroc or 0.0 for point in quality.points), quality.auroc] for quality in qualities]
        parts[system] = [statistics.fmean(one) for one in zip(*series, strict=True)]
    apart, changed = 0.0005, []
    for one, other in itertools.permutations(systems, 2):
        if parts[one][-1] > parts[other][-1] + apart:
            ahead = [a > b for a, b in zip(parts[one], parts[other], strict=True)]
            assert ahead[-2:] == [True, True], (one, other)  # in the last fifth, as on the test split
            if not all(ahead[2:]):
                changed.append(f"`{one}` and `{other}`")
    (pair,) = changed
    words = f"From 40 % of these samples on one pair changed places whose AUROC differs by more than {apart}, {pair}, "
    assert f"{words}in the last fifth:" in said(ROOT / "docs" / "systems.md")


def test_exact_baseline_of_the_approximate_systems_is_close_to_its_end() -> None:
    records, _ = RecordStore(ROOT / "results" / "published" / "approximate").load_all()
    (first,) = (record for record in records if record.cell.system == "full_gpu" and record.cell.round == 0)
    (longer,) = (
        run
        for run in record("streams/learnable")["runs"]
        if (run["dataset"], run["kind"]) == ("criteo_kaggle", "all rows")
    )
    assert longer["samples"] == 2 * first.cell.steps * first.cell.batch_size
    assert first.measurement is not None
    short = first.measurement.quality.auroc
    words = f"on the first seed it has {short:.4f}, and {longer['auroc']:.4f} after twice as many"
    assert words in said(ROOT / "docs" / "systems.md")


def test_what_the_page_says_of_ours_beside_the_published_rows() -> None:
    words = said(ROOT / "docs" / "virtual-cuda.md")
    apart: dict[tuple[str, str], tuple[float, float, float]] = {}  # ours from theirs: allocated, reserved; GiB
    for workload in ("criteo_kaggle", "avazu", "criteo_1tb"):
        for theirs in published_rows(workload):
            row = MEMORY.find(MEMORY_ROWS, workload, MEMORY.OURS[theirs.system])
            allocated, reserved = MEMORY.read_as_published(row) / 2**30, row["peak_reserved_bytes"] / 2**30
            more = allocated - theirs.gpu_allocated_gb
            relative = abs(more) / theirs.gpu_allocated_gb
            apart[workload, theirs.system] = relative, theirs.gpu_reserved_gb / reserved - 1, more
    relative, _, more = apart.pop(("criteo_1tb", "torchrec"))  # the sixth
    assert relative > 0.2
    assert f"{more:.0f} GiB of tables were elsewhere" in words
    assert MEMORY.find(MEMORY_ROWS, "criteo_1tb", "full_gpu")["peak_reserved_bytes"] > MEMORY.CARD_BYTES
    assert "do not fit a card of 80 GB" in words
    assert len(apart) == 5
    assert max(relative for relative, _, _ in apart.values()) < 0.02, apart
    assert "ours and theirs agree within 2 % in five of six rows" in words
    above = [100 * reserved for _, reserved, _ in apart.values()]
    assert f"Published reserved bytes are {min(above):.0f} to {max(above):.0f} % above these peaks" in words


def test_the_page_counts_the_orders_and_deletions_of_the_tests() -> None:
    words = said(ROOT / "docs" / "virtual-cuda.md")
    deletions = len(re.findall(r"^    Deletion\(", (ROOT / "tests/cuda/test_deletions.py").read_text(), re.MULTILINE))
    (seeds,) = re.findall(
        r"fixture\(autouse=True, params=\((.*?)\)\)", (ROOT / "tests/cuda/test_orders.py").read_text()
    )
    assert f"`test_deletions.py` takes {deletions} waits, events and `record_stream`s out" in words
    assert (len(seeds.split(",")), "eight orders each" in words) == (8, True)


def test_a_gradient_of_an_id_is_520_bytes() -> None:
    row = MEMORY.find(MEMORY_ROWS, "avazu", "colossalai_cache")
    assert MEMORY.read_as_published(row) - row["allocated_after_step_bytes"] == 520 * row["lookups"]
    assert "520 bytes per id, a row and an int64" in said(ROOT / "docs" / "virtual-cuda.md")


def test_the_drift_board_on_the_page_is_that_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "results" / "tracks")
    on_page = importlib.import_module("drift_board").on_page
    board = record("tracks/board")
    assert on_page(board) in page("synthetic")
    plain, real = board["streams"]["criteo_kaggle"], board["streams"]["criteo_kaggle, real rows"]
    tables = len(SCHEMAS["criteo_kaggle"].categorical)
    assert plain["batches"] == 3 * plain["batches_filling"]
    words = said(ROOT / "docs" / "synthetic.md")
    setting = f"per batch of {plain['batch_ids'] // tables:,} samples: Criteo Kaggle at full size, {board['ratio']:.0%}"
    assert (
        f"{setting.replace('%', ' %')} of the rows cached, no look-ahead. The replay takes {plain['batches']}" in words
    )
    of_real = f"{real['batch_ids'] // tables} to a batch and {100 * board['real_ratio']:.0f} % cached"
    assert f"Real rows are the samples in the order of time, {of_real}." in words


def test_misses_in_time_order_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "results" / "streams")
    found = record("streams/time_order")
    time_order = importlib.import_module("time_order")
    assert time_order.on_page(found) in page("synthetic")
    apart: dict[tuple[str, str], float] = {}
    for dataset, orders in found.items():
        ordered, shuffled = (time_order.missed(one) for one in orders.values())
        for policy, *cells in zip(time_order.POLICIES, ordered, shuffled, strict=True):
            pairs = zip(*(cell.split(" / ") for cell in cells), strict=True)
            apart[dataset, policy] = max(abs(float(x) - float(y)) for x, y in pairs if "n/a" not in (x, y))
    fae = apart.pop(("avazu", "fae"))
    said_most = f"by at most {fae:.1f} points, those of FAE's fixed hot set on Avazu"
    assert f"{said_most}, and by {max(apart.values()):.1f} elsewhere" in said(ROOT / "docs" / "synthetic.md")
    counted = [one["configuration"]["counted_batches"] for orders in found.values() for one in orders.values()]
    assert f"{min(counted)} to {max(counted)} are counted" in said(ROOT / "docs" / "synthetic.md")


def test_learnt_aurocs_are_those_of_the_record() -> None:
    found = record("streams/learnable")["runs"]
    section = page("synthetic").split("AUROC after one epoch")[1].split("##")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == 3
    ((optimizer, rate, seed),) = {(run["optimizer"], run["lr"], run["seed"]) for run in found}
    assert (optimizer, f", row-wise Adagrad at {rate}, seed {seed}, " in section) == ("rowwise_adagrad", True)
    for dataset, cells in rows:
        runs = {run["kind"]: run for run in found if run["dataset"] == dataset}
        learnt, control = runs["all rows"], runs["no embeddings"]
        assert cells.split(" | ") == [f"{x:.4f}" for x in (learnt["optimum"], learnt["auroc"], control["auroc"])]
        assert learnt["gap"] < 0.02
        assert learnt["auroc"] - control["auroc"] > 0.03


def test_how_far_rounding_moves_auroc_at_the_rates_of_a_scale_is_that_of_its_record() -> None:
    found = record("streams/rounding")["runs"]
    assert {run["steps"] for run in found} == {SMALL.train_steps + SMALL.counted_steps}
    assert f"After the {SMALL.train_steps + SMALL.counted_steps} steps of scale `small`" in page("protocol")
    words = r"moves it by at most (\S+) with SGD, (\S+) with row-wise Adagrad \(`results/streams/rounding.py`\)"
    ((sgd, adagrad),) = re.findall(words, " ".join(page("protocol").split()))
    for most, optimizer in ((float(sgd), "sgd"), (float(adagrad), "rowwise_adagrad")):
        spreads = [run["spread"] for run in found if run["optimizer"] == optimizer and run["lr"] == SMALL.lr[optimizer]]
        assert len(spreads) == 3 * 3  # datasets, seeds
        assert 0.9 * most < max(spreads) <= most
    assert max(float(sgd), float(adagrad)) < AUROC_TOLERANCE / 4


def test_how_samples_of_logs_differ_from_streams_is_in_the_record() -> None:
    figures = record("streams/fidelity")["figures"]
    distinct = {one["sample"]: one["real"] / one["synthetic"] for one in figures if one["figure"] == "distinct ids"}
    fewer = [f"{100 - 100 * share:.0f} %" for sample, share in distinct.items() if "_head." in sample]
    clicks = [one["real"] for one in figures if one["figure"].startswith("click rate") and "kaggle" in one["dataset"]]
    words = said(ROOT / "docs" / "synthetic.md")
    assert f"of Avazu has {fewer[0]} fewer distinct ids than as many rows of the stream. - The first 1,000 " in words
    assert f"rows of a day of Criteo 1TB have {fewer[1]} fewer." in words
    assert f"has a click rate of {clicks[1]:.3f} where {clicks[0]:.3f} is published" in words


def test_the_best_possible_auroc_of_a_stream_is_that_of_the_record() -> None:
    found = {run["dataset"]: f"{run['stated']:.2f}" for run in record("streams/learnable")["runs"]}
    assert found["criteo_kaggle"] == found["criteo_1tb"]
    known = f"{found['criteo_1tb']} for the Criteo streams and {found['avazu']} for Avazu"
    assert f"Its AUROC is known: {known}" in said(ROOT / "docs" / "synthetic.md")
    assert "is within 0.02 of the best possible AUROC on all three streams" in said(ROOT / "docs" / "synthetic.md")


def test_sentences_about_the_drift_board_are_those_of_the_record() -> None:
    of_stream = {
        name: {policy: sum(run[-len(stream["misses"]["belady"]) :]) for policy, run in stream["misses"].items()}
        for name, stream in record("tracks/board")["streams"].items()
    }
    ours = {name: 100 * (misses["lfu"] / misses["fbgemm lfu"] - 1) for name, misses in of_stream.items()}
    drifting = of_stream["criteo_kaggle@drift"]
    more = {policy: round(100 * (count / drifting["lfu"] - 1)) for policy, count in drifting.items()}
    assert [name for name, percent in ours.items() if percent < 0] == ["criteo_kaggle@drift"]
    assert len(of_stream) == 4
    assert min(of_stream, key=lambda name: of_stream[name]["lru"] / of_stream[name]["lfu"]) == "criteo_kaggle@drift"
    words = said(ROOT / "docs" / "synthetic.md")
    for sentence in (
        f"on three of the four streams, at best {max(ours.values()):.0f} % less than our `lfu`",
        f"under drift ours misses {-min(ours.values()):.0f} % less",
        f"least so under drift ({more['lru']} %)",
        f"{more['static']} % more misses than `lfu` has",
        f"{more['static, first tenth']} % more.",
    ):
        assert sentence in words
