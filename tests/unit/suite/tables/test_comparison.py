"""Golden files lie under tests/golden; after a change that is meant, write them anew and read the difference:

UPDATE_GOLDEN=1 pytest tests/unit/suite/tables/test_comparison.py
"""

import io
import math
import os
from pathlib import Path

import pytest
from rich.console import Console

from suite.records.groups import RecordGroup, group_records
from suite.records.measured import Conditions, MachineState, Ranks, RankShare
from suite.records.record import Record, Status
from suite.tables.columns import Columns
from suite.tables.comparison import APPROXIMATE, approximate_tables, approximations, comparison, rank_tables
from suite.tables.formatting import amount, duration, percent
from suite.tables.settings import CPU_CAVEAT, caption
from suite.tables.sheet import ResultTable, to_csv, to_markdown
from suite.tables.terminal import render
from suite.tables.verdict import verdict
from tests.unit.suite.fabricate import BASELINE, cpu_run, environment, gpu_run, record, rounds, shuffled
from tests.unit.suite.report.report_scenes import lines_of

GOLDEN = Path(__file__).parents[3] / "golden"


def groups() -> list[RecordGroup]:
    return group_records(shuffled(gpu_run() + cpu_run()))


def only_table(records: list[Record]) -> ResultTable:
    (block,) = comparison(group_records(records)).tables
    return block


def rendered(width: int, shown: list[RecordGroup] | None = None, columns: Columns = Columns.MAIN) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=width, color_system=None), shown or groups(), columns)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("comparison.md", lambda: to_markdown(comparison(groups()))),
        ("comparison.csv", lambda: to_csv(comparison(groups()))),
        ("console_120.txt", lambda: rendered(120)),
    ],
)
def test_golden_files(name, made) -> None:
    text, path = made(), GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8"), f"if it is meant: UPDATE_GOLDEN=1 pytest {__file__}"


@pytest.mark.parametrize(
    "other",
    [
        {"where": environment(machine="another")},
        {"setting": {"data": "real"}},
        {"setting": {"cache_ratio": 0.05}},
        {"where": environment(threads=2)},
    ],
)
def test_records_that_do_not_compare_never_share_a_table(other) -> None:
    assert len(group_records([record("a"), record("b")])) == 1
    assert len(group_records([record("a"), record("b", **other)])) == 2


def test_tables_follow_the_datasets_order_tracks_behind_theirs() -> None:
    names = ["my_shop", "criteo_1tb", "avazu@drift", "avazu", "criteo_kaggle@drift"]
    shown = group_records([record(setting={"workload": name}) for name in names])
    titles = ["Criteo Kaggle @drift", "Avazu", "Avazu @drift", "Criteo 1TB", "my_shop"]
    assert [group.title for group in shown] == titles


def test_the_second_table_is_shown_where_all_columns_are_asked_for() -> None:
    assert "verified" in rendered(1000, columns=Columns.ALL)
    assert "verified" not in rendered(1000)


@pytest.mark.parametrize(("noise", "pace", "epoch"), [(0.0001, "50.17", "~47.8s"), (0.04, "50", "~48s")])
def test_no_figure_of_speed_has_a_digit_that_noise_hides(noise: float, pace: str, epoch: str) -> None:
    runs = [record("full_gpu", noise=noise), record("a", samples_per_s=0.5017 * BASELINE, noise=0.0)]
    shown = next(line for line in lines_of(only_table(runs)) if line["system"] == "a")
    assert (shown["it/s"], shown["vs full_gpu"], shown["epoch time"]) == (pace, "0.50 [0.50, 0.50]", epoch)


def test_no_records_still_give_tables() -> None:
    sheet = comparison([])
    assert "No records yet" in to_markdown(sheet)
    assert to_csv(sheet).startswith("kind,workload")


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_terminal_of_any_width_shows_every_number_whole(width: int) -> None:
    shown = [group for group in groups() if not group.on_cpu]
    text = rendered(width, shown, Columns.ALL)
    assert "…" not in text
    assert all(len(line) <= width for line in text.split("\n"))
    for table in comparison(shown).tables[0].frames:
        assert all(cell in text for line in table.itertuples(index=False) for cell in line[1:])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (amount(None), "n/a"), (amount(float("nan")), "n/a"), (amount(0, 0.1), "0"), (amount(0.00123), "0.0012"),
        (amount(12345.6), "12,346"), (amount(42.129, 0.02), "42.1"), (amount(12345.6, 0.02), "12,300"),
        (amount(42.129, 0.0), "42.13"), (amount(0.04, 9.0), "0.04"),
        (duration(math.inf), "n/a"), (duration(4.367), "4.37s"), (duration(49.24, 0.3), "50s"),
        (duration(59.97), "1m00s"), (duration(727, 0.02), "12m10s"), (duration(3599.7), "1h00m"),
        (percent(0), "0 %"), (percent(1, 2), "100.00 %"), (percent(0.25), "25 %"),
        (percent(0.004), "0.4 %"), (percent(1.2607), "126 %"), (percent(0.99994, 2), "99.99 %"),
        (percent(0.999999, 2), "99.9999 %"), (percent(2e-6, 2), "0.0002 %"),
    ],
)  # fmt: skip
def test_numbers_keep_the_digits_that_matter(shown: str, text: str) -> None:
    assert shown == text


def test_kernels_of_others_and_the_repeat_fill_no_rows_and_are_in_the_raw_numbers() -> None:
    alike = [record(name, same_kernel_as="full_gpu") for name in ("fbgemm_uvm", "cpu_embeddings")]
    failed = record("fbgemm_uvm_caching", status=Status.CRASHED, reason="because")
    table = only_table([record("full_gpu"), *alike, failed])
    assert [line["system"] for line in table.lines] == ["full_gpu", "fbgemm_uvm_caching"]
    assert [line["system"] for line in table.unshown] == ["cpu_embeddings", "fbgemm_uvm", "full_gpu (again)"]
    said = "cpu_embeddings and fbgemm_uvm are full_gpu's kernel on the same memory here"
    assert any(note.startswith(said) for note in table.notes)


# Captions


def captioned(records: list[Record]) -> str:
    return caption(group_records(records))


def test_the_caveat_of_a_cpu_stands_below_its_tables_alone() -> None:  # the golden files have whole captions
    assert CPU_CAVEAT in captioned(cpu_run()) and CPU_CAVEAT not in captioned(gpu_run())


def test_disturbed_rounds_are_counted_and_the_worst_is_told() -> None:
    runs = []
    for number, (share, sentences) in enumerate([(0.1, ("others took 10%",)), (0.4, ("others took 40%",)), (0.0, ())]):
        seen = Conditions(start=MachineState(), end=MachineState(), others_cpu_share=share)
        runs.append(record("a", round=number, disturbed=sentences).model_copy(update={"conditions": seen}))
    assert "disturbed in 2 of 3 rounds: others took 40%" in captioned(runs)
    assert "disturbed" not in captioned(runs[2:])


def test_round_without_turns_is_no_run_that_an_interval_is_over() -> None:
    runs = rounds("a", [1e6, 1.1e6, 1.2e6])
    assert "3 rounds x 3 builds x 4 turns of 20 steps, one process, intervals over rounds" in captioned(runs)
    interrupted = runs[2].model_copy(update={"turns": None})
    assert "2 rounds x 3 builds x 4 turns of 20 steps, one process, intervals over builds" in captioned(
        [*runs[:2], interrupted]
    )


def test_mixed_code_is_said() -> None:
    stale = rounds("b", [1e6], where=environment(code="old"))
    assert "of several versions" not in captioned([record("a")])
    assert "of several versions, run them again to compare alike" in captioned([record("a"), *stale])


def test_frequencies_are_told_unless_they_are_the_usual_ones() -> None:
    assert "frequencies" not in captioned([record()])
    assert "frequencies from the first 10 % of training;" in captioned([record(setting={"frequency_prefix": 0.1})])


# Approximate systems: apart from exact ones, with intervals over seeds and bytes by tier


MB = 1_000_000


def scored(system, aurocs, *, exact=False, **measured):
    """A system's rounds with these scores."""
    return [record(system, round=n, auroc=auroc, exact=exact, **measured) for n, auroc in enumerate(aurocs)]


EXACT = scored("full_gpu", [0.78, 0.80, 0.79], anatomy={"device/rows": 90 * MB, "device/state": 10 * MB}, exact=True)
SMALL = scored("hashed", [0.76, 0.78, 0.77], anatomy={"device/rows": 25 * MB})
TINY = scored("hashed[compression=64]", [0.75, 0.77, 0.76], anatomy={"device/rows": 4 * MB // 10})
CACHED = scored(
    "freq_cache[slow_rows=int8]",
    [0.7801, 0.7999, 0.79],
    anatomy={"device/rows": 5 * MB, "host/rows": 30 * MB, "host/state": 10 * MB},
)


def only(*runs):
    (group,) = group_records([record for of_system in runs for record in of_system])
    return group


def test_scores_are_paired_by_seed_and_bytes_are_those_of_the_slowest_tier():
    exact, cached, small = approximations(only(SMALL, CACHED, EXACT))
    assert [exact[name] for name in ("system", "exact", "share", "below")] == ["full_gpu", True, 1.0, None]
    assert [cached[name] for name in ("table_bytes", "device_bytes", "share")] == [40 * MB, 5 * MB, 0.4]
    assert cached["below"].value == pytest.approx(0.0, abs=1e-9)
    assert cached["below"].low < 0 < cached["below"].high < 0.0004
    assert [small[name] for name in ("table_bytes", "host_bytes", "share")] == [25 * MB, None, 0.25]
    # every seed loses the same, though seeds differ: the interval of the loss is a point, that of the score is wide
    assert (small["below"].value, small["below"].low, small["below"].high) == pytest.approx((0.02, 0.02, 0.02))
    assert small["auroc"].high - small["auroc"].low == pytest.approx(2 * 4.303 * 0.01 / 3**0.5, rel=1e-3)


def test_what_fewer_bytes_cost_is_said_in_a_sentence():
    (block,) = approximate_tables(only(EXACT, SMALL, CACHED))
    assert block.summary == (
        "freq_cache[slow_rows=int8] takes 40 % of the exact tables' bytes, and no loss of AUROC was seen (0.0000 "
        "[-0.0002, 0.0002]); the smallest, hashed, takes 25.0 % and loses 0.0200 [0.0200, 0.0200]."
    )
    (some,) = approximate_tables(only(EXACT, SMALL, TINY, CACHED[:1]))
    assert some.summary == (
        "Every approximate system that can be judged loses AUROC; the smallest, hashed[compression=64], takes 0.4 % "
        "and loses 0.0300 [0.0300, 0.0300]."
    )
    (single,) = approximate_tables(only(EXACT[:1], SMALL[:1]))
    assert single.summary.startswith("Nothing can be said of what fewer bytes cost")


def test_approximate_systems_stand_apart_from_exact_ones():
    plain, mixed = only(EXACT), only(EXACT, SMALL, CACHED)
    assert approximate_tables(plain) == []
    main, apart = comparison([mixed]).tables
    assert apart.heading == APPROXIMATE
    assert [line["system"] for line in main.lines] == ["full_gpu"]
    assert [line["system"] for line in apart.lines] == ["full_gpu", "freq_cache[slow_rows=int8]", "hashed"]
    assert verdict(mixed) == ""
    assert verdict(plain) == "Nothing to compare: no system beside full_gpu can be judged."


def test_wrong_answers_show_no_number():
    wrong = [run.model_copy(update={"status": "wrong_answer", "measurement": None}) for run in SMALL[:1]]
    assert all(one["system"] != "hashed" or one["auroc"] is None for one in approximations(only(EXACT, CACHED, wrong)))


# Cells on ranks


def share(lookups, *, misses, table_bytes):
    return RankShare(
        table_bytes=table_bytes,
        device_bytes=table_bytes // 10,
        host_peak_rss_bytes=10**9,
        lookups=lookups,
        unique_ids=lookups,
        unique_misses=misses,
        ids_bytes=4_000_000,
        pooled_bytes=16_000_000,
    )


def on_ranks(system, *shares, ranks=2):
    plain = record(system, setting={"ranks": ranks, "device": "cpu"})
    account = Ranks(backend="gloo", steps=4, shares=shares)
    return plain.model_copy(
        update={"measurement": plain.measurement.model_copy(update={"ranks": account}), "turns": None}
    )


def test_the_table_shows_each_ranks_bytes_the_imbalances_and_what_was_sent_per_step():
    made = on_ranks(
        "freq_cache",
        share(300, misses=10, table_bytes=60_000_000),
        share(100, misses=30, table_bytes=20_000_000),
    )
    (block,) = rank_tables(group_records([made]))
    (shown,) = lines_of(block)
    assert shown["tables MB per rank"] == "20.00 to 60.00"
    assert (shown["lookups imbalance"], shown["misses imbalance"]) == ("1.50", "1.50")
    assert (shown["MB of ids sent per it"], shown["MB pooled sent per it"]) == ("2.00", "8.00")
    assert "gloo on one machine" in block.caption and "not ranked" in block.caption


def test_each_number_of_ranks_has_a_table_of_its_own_apart_from_the_comparison():
    one = share(400, misses=40, table_bytes=80_000_000)
    records = [
        on_ranks("freq_cache", one, ranks=1),
        on_ranks("freq_cache", one, one),
        record("full_gpu", setting={"device": "cpu"}),
    ]
    groups = group_records(records)
    assert [block.heading.split(", ")[-2] for block in rank_tables(groups)] == ["1 rank", "2 ranks"]
    assert len(groups) == 3
    sheet = comparison(groups)
    assert set(sheet.frame["ranks"].dropna()) == {1, 2}
    assert not sheet.frame["tf32"].any()
    names = [line["system"] for block in sheet.tables for line in block.lines]
    assert names.count("freq_cache") == 2
