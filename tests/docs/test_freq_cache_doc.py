"""`docs/freq-cache.md` and the two pages behind it: their code runs, their numbers are what it computes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrec import EmbeddingBagConfig
from torchrec.types import DataType

from systems.contract import MemoryUse, OptimizerKind, SparseOptimizer, Tier
from systems.freq_cache import LFU, LRU, CachedEmbeddingBagCollection, StaticFrequency, sizing
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.tiers import file as file_tier
from systems.freq_cache.tiers.commits import SPARE
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.docs.commands import module_of
from workloads.streams.synthetic import SyntheticWorkload

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text() for name in ("freq-cache", "cache-design", "freq-cache-torchrec"))
UNITS = {"GiB": (2**30, ".2f"), "MiB": (2**20, ".1f")}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def tables(text: str) -> list[list[list[str]]]:
    """Cells of the body of every table."""
    found = re.findall(r"\n\|[-:| ]+\|\n((?:\|.*\|\n)+)", text)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()] for body in found]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's Python blocks leave behind, run in order in a directory of their own."""
    names: dict[str, Any] = {"directory": tmp_path_factory.mktemp("page")}
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(names["directory"])
        for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
            exec(compile(block, "docs/freq-cache.md", "exec"), names)
        yield names


def test_the_code_of_the_page_does_what_it_says(ran: dict[str, Any]) -> None:
    assert 0.2 < ran["hit_rate"] < 1
    assert ran["fetched_bytes"] > 0
    assert (ran["directory"] / "checkpoint" / "manifest.json").is_file()
    assert (ran["directory"] / "rows" / "cache_0" / "map.1").is_file()
    assert ran["resumed"].fused_optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)
    assert ran["clicked"].shape == (1, 6)
    assert ran["rates"] == pytest.approx([0.1, 0.01])
    torch.testing.assert_close(ran["evaluated"], ran["resumed"](ran["first"]).values().detach())


def test_a_migrated_model_trains_on_as_the_one_that_it_came_from(ran: dict[str, Any]) -> None:
    trained, migrated = ran["trained"], ran["migrated"]
    for features in ran["batches"](3):
        trained(features).values().square().sum().backward()
        migrated(features).values().square().sum().backward()
    for table in ran["tables"]:
        name = f"embedding_bags.{table.name}.weight"
        torch.testing.assert_close(migrated.state_dict()[name], trained.state_dict()[name], rtol=0, atol=1e-5)


def test_measured_figures_are_those_of_the_records() -> None:
    assert module_of(DOCS / "figures" / "cache_table.py").table() in section("Measured")


def test_look_ahead_beside_training_is_that_of_the_records() -> None:
    said = " ".join((DOCS / "cache-design.md").read_text(encoding="utf-8").split())
    records = [
        json.loads((DOCS.parent / f"results/cache/{name}.json").read_text()) for name in ("alone", "alone_larger_mlps")
    ]
    found = [one["relative_speed"] for record in records for one in record["results"].values()]
    ahead, full = ([f"{one[name]:.2f}" for one in found] for name in ("freq_cache[look_ahead=4]", "full_gpu"))
    assert f"is {ahead[0]} (Criteo Kaggle), {ahead[1]} (Avazu) and {ahead[2]} (Criteo 1TB)" in said
    assert f"and {ahead[3]} times with larger MLPs" in said
    assert f"is {full[0]}, {full[1]}, {full[2]} and {full[3]} times" in said


def test_sentences_beside_the_measured_table_are_those_of_the_records() -> None:
    said = " ".join((DOCS / "cache-design.md").read_text(encoding="utf-8").split())
    stage, planning, alone = (
        json.loads((DOCS.parent / f"results/cache/{name}.json").read_text()) for name in ("stage", "planning", "alone")
    )
    assert stage["lookups"] == 53_248
    assert "ids, 32 values wide, 5 % cached, one id per bag" in said
    assert stage["dim"] == 32
    hits = [one["freq_cache[look_ahead=0]"]["unique_hit_rate"] for one in stage["results"].values()]
    assert "Half of a batch's distinct rows miss" in said
    assert 0.45 < min(hits) <= max(hits) < 0.55
    assert "has three runs of each kind; the table shows the middle one" in said
    for one in planning["results"].values():
        runs = sorted(one["ms_by_build"])
        assert len(runs) == 3
        assert one["ms_per_batch"] == pytest.approx(runs[1])
    assert "in six processes of its own, in turns, on a CPU of 2 cores" in said
    for one in alone["results"].values():
        assert {len(processes) for processes in one["seconds"].values()} == {6}
    assert alone["environment"]["cores"] == 2


def test_bytes_of_a_record_by_optimizer_and_row_type() -> None:
    by_optimizer = tables(section("How large"))[0]
    assert [line[0].split("`")[1] for line in by_optimizer] == list(OptimizerKind)
    for name, full, full_128, half, half_128 in by_optimizer:
        optimizer = SparseOptimizer(kind=OptimizerKind(name.split("`")[1]), lr=1.0)
        for dtype, formula, at_128 in ((torch.float32, full, full_128), (torch.float16, half, half_128)):
            for dim in (4, 16, 128):
                record = RowLayout(dim, dtype, optimizer.state_shapes(dim)).record_bytes
                assert record == _evaluated(formula, dim)
                if dim == 128:
                    assert f"{record:,}" == at_128


@pytest.mark.parametrize("kind", [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD])
@pytest.mark.parametrize("half", [False, True])
def test_formulas_are_what_a_live_collection_weighs(kind: OptimizerKind, half: bool) -> None:
    rows, dim, lookups, ratio = 30_000, 16, 1_000, 0.1
    table = EmbeddingBagConfig(
        name="t",
        feature_names=["t"],
        num_embeddings=rows,
        embedding_dim=dim,
        data_type=DataType.FP16 if half else DataType.FP32,
    )
    optimizer = SparseOptimizer(kind=kind, lr=1.0)
    system = CachedEmbeddingBagCollection([table], optimizer=optimizer, cache_ratio=ratio, batch_lookups=lookups)
    (line,) = [line for line in tables(section("How large"))[0] if line[0].split("`")[1] == kind]
    record, slots = _evaluated(line[3 if half else 1], dim), int(rows * ratio)
    memory = system.memory()
    assert memory[Tier.DEVICE, MemoryUse.ROWS] + memory[Tier.DEVICE, MemoryUse.STATE] == slots * record
    staging = 3 * (1 + min(lookups, slots) // 8) * record + 24 * lookups
    assert memory[Tier.DEVICE, MemoryUse.STAGING] == staging
    assert memory[Tier.DEVICE, MemoryUse.INDEX] == 0
    assert memory[Tier.HOST, MemoryUse.ROWS] + memory[Tier.HOST, MemoryUse.STATE] == rows * record
    assert memory[Tier.HOST, MemoryUse.INDEX] == pytest.approx(4 * rows + 12.125 * slots + 0.14e6 + 2 * rows, abs=1_000)
    assert memory[Tier.HOST, MemoryUse.STAGING] == 16 * (1 + lookups)


def test_a_file_tier_keeps_six_bytes_per_row_in_ram(tmp_path: Path) -> None:
    table = EmbeddingBagConfig(name="t", feature_names=["t"], num_embeddings=30_000, embedding_dim=16)
    options = {"optimizer": SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0), "cache_ratio": 0.1}
    in_ram = CachedEmbeddingBagCollection([table], **options).memory()
    in_file = CachedEmbeddingBagCollection([table], **options, directory=tmp_path).memory()
    more = in_file[Tier.HOST, MemoryUse.INDEX] - in_ram[Tier.HOST, MemoryUse.INDEX]
    assert 6 * table.num_embeddings <= more < 6 * table.num_embeddings + 1_000  # and the factors of checksums
    assert "A map of 6 bytes a row" in (DOCS / "disk.md").read_text()
    assert in_file[Tier.DISK, MemoryUse.ROWS] == 0
    assert (Tier.HOST, MemoryUse.ROWS) not in in_file


def test_bytes_that_policies_keep_per_row() -> None:
    rows = 1_000
    static = StaticFrequency([np.zeros(rows, np.int64)])
    kept = {"static": static, "lfu": LFU(rows), "lru": LRU()}
    stated = {line[0].split("`")[1]: int(line[3]) for line in tables(PAGE)[0]}
    assert stated == {name: policy.nbytes // rows for name, policy in kept.items()}


def test_criteo_1tb_fits_what_the_page_says(ran: dict[str, Any]) -> None:
    stated = _worked_example()
    slots, record = ran["slots"], 512
    assert stated["device", f"{slots:,} slots"] == slots * record
    staged = 1 + ran["spec"].batch_lookups // 8
    assert stated["device", f"staging, 3 x {staged:,} rows"] == 3 * staged * record
    assert stated["device", "slot ids and offsets"] == ran["slot_id_bytes"]
    assert stated["device", "total"] == ran["device_bytes"]
    assert stated["host", "rows"] == ran["spec"].row_bytes


def test_index_and_window_of_criteo_1tb(ran: dict[str, Any]) -> None:
    stated, batch_size = _worked_example(), 16_384
    workload = SyntheticWorkload.create("criteo_1tb", batch_size=batch_size, seed=0)
    sizes = np.array([rows for _, rows in workload.tables])
    assert sizes.sum() == ran["spec"].rows
    starts, ends = sizes.cumsum() - sizes, np.arange(1, sizes.size + 1) * batch_size
    planner = Planner(
        rows=int(sizes.sum()), slots=ran["slots"], policy=LFU(int(sizes.sum())), batch_ids=ran["spec"].batch_lookups
    )
    assert stated["host", "index and policy"] == planner.index_bytes
    assert stated["host", "more of the index, with a look-ahead"] == sizing.FINDING_BYTES * planner.rows
    for batch in range(65):
        ids = Ids(workload.batch(batch).features.values().numpy(), ends, starts)
        planner.announce(planner.distinct(ids), changes=True)
        if batch in (16, 64):
            assert stated["host", f"window, look-ahead {batch}"] == planner.window_bytes
    assert f"{planner.plan().unique_ids:,} distinct rows in its first batch" in PAGE


def test_other_numbers_of_the_page(ran: dict[str, Any]) -> None:
    assert f"{16 * ran['spec'].rows / 2**30:.2f} GiB\n  for Criteo 1TB" in PAGE
    assert f"At most {1 / (1 - SPARE):.1f} times the rows written" in PAGE
    assert file_tier._MOST_ROWS == 500 * 10**6
    assert "500 million rows in a file tier" in PAGE


def test_misses_stated_are_those_of_the_figure(tmp_path: Path) -> None:
    figure = module_of(DOCS / "figures" / "freq_cache.py")
    text = section("What policy and look-ahead save")
    measured = figure.measure(ratios=(0.005, 0.01))
    figure.draw(measured, tmp_path / "freq_cache.svg")
    assert "<svg" in (tmp_path / "freq_cache.svg").read_text()
    for look_ahead, *stated in tables(text)[0]:
        shares = [measured.misses[policy, int(look_ahead)][1] / measured.bound[1] for policy in figure.POLICIES]
        assert [f"{share:.2f}" for share in shares] == stated
    assert f"{measured.rows:,} rows" in text
    assert f"{measured.unique_ids:,.0f} distinct rows" in text
    assert f"misses {100 * measured.bound[0]:.0f} %" in text
    assert measured.unique_ids / int(0.005 * measured.rows) == pytest.approx(0.5, abs=0.05)


def _evaluated(formula: str, dim: int) -> int:
    """`4 d + 4` at a width."""
    factor, constant = re.fullmatch(r"(\d+) d(?: \+ (\d+))?", formula).groups(default="0")
    return int(factor) * dim + int(constant)


def _worked_example() -> dict[tuple[str, str], int]:
    found = {}
    for where, what, stated, rounded in tables(section("How large"))[2]:
        count = int(stated.replace(",", ""))
        unit, form = UNITS[rounded.split()[1]]
        assert rounded.split()[0] == format(count / unit, form)
        found[where, what] = count
    return found
