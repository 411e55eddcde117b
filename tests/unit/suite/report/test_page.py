"""The page as text: what it says, what it carries, and that the same records always give the same bytes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import escape
from typer.testing import CliRunner

from suite.records.groups import group_records
from suite.records.record import Cell
from suite.records.status import Status
from suite.report.page.budget import budget_tables
from suite.report.page.commands import commands
from suite.report.page.names import Names
from suite.report.page.page import page, without_empty_columns
from suite.report.page.statements import device_statement, failures, not_measured, verdicts
from suite.report.source import Source, read
from suite.report.standings import leaderboards, standings
from suite.run.console.command import app
from suite.tables.columns import COLUMNS, View
from suite.tables.rows import Row
from suite.tables.sheet import Block, Head, Line, Notes, Sheet
from suite.tables.verdict import verdict
from tests.browser.page_scenes import MARKUP, SCRIPT, fabricated_records, sweep_records, written
from tests.unit.suite.fabricate import BASELINE, cell, cpu_run, environment, gpu_run, record, rounds, shuffled

PAGE = Path(__file__).resolve().parents[4] / "suite" / "report" / "page"
SVG = (
    '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">\n'
    '<svg xmlns="http://www.w3.org/2000/svg"><defs><clipPath id="clip"><path id="mark"/></clipPath></defs>'
    '<g clip-path="url(#clip)"><use href="#mark"/></g></svg>'
)
VOID = {"meta", "link", "input", "wbr", "br", "img"}


class Outline(HTMLParser):
    """Elements with their attributes, checked to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def source_of(records: list[Any]) -> Source:
    return Source(groups=tuple(group_records(records)))


def made(records: list[Any], **changes: Any) -> str:
    arguments = {"sheets": (), "svgs": {}, "root": Path("out")} | changes
    return page(source_of(records), **arguments)


def carried(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="carried">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def sheet(name: str = "paper", keys: tuple[str, ...] = ()) -> Sheet:
    block = Block(
        heading="Avazu & co",
        facts=("A fact.",),
        heads=(Head(words="system", text=True), Head(words="it/s")),
        lines=(Line(cells=("full_gpu", "12.5"), keys=keys), Line(cells=("others", "n/a"))),
        notes=(Notes(title="Notes", sentences=("A note.",)),),
    )
    return Sheet(
        name=name, title="The paper's layout", legend=("it = iteration.",), blocks=(block,), frame=pd.DataFrame()
    )


def test_page_is_well_formed_and_every_id_is_its_own() -> None:
    outline = Outline(made(fabricated_records(), sheets=(sheet(),), svgs={"memory": SVG, "throughput_by_bytes": SVG}))
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [attributes.get("aria-labelledby") for _, attributes in outline.elements]
    assert {name for name in labelled if name} - {"behind-title"} <= set(ids)
    anchors = [link["href"] for link in outline.all("a")]
    assert all((link or "")[1:] in ids for link in anchors)


def test_every_table_has_a_caption_and_every_head_a_scope() -> None:
    text = made(fabricated_records(), sheets=(sheet(),))
    outline = Outline(text)
    assert len(outline.all("caption")) == len(outline.all("table")) >= 3
    assert all(head.get("scope") in ("col", "row") for head in outline.all("th"))
    controls = [*outline.all("select"), *outline.all("input")]
    assert len(controls) >= 7
    # Every control stands in a label, or is named by one
    assert text.count("<label") == len(controls)


def test_nothing_is_fetched_and_only_the_page_s_own_script_may_run() -> None:
    outline = Outline(made(fabricated_records(), svgs={"memory": SVG}))
    assert outline.all("img") == outline.all("iframe") == []
    assert [link["href"] for link in outline.all("link")] == ["data:,"]
    assert all("src" not in script for script in outline.all("script"))
    policy = next(meta["content"] for meta in outline.all("meta") if "http-equiv" in meta)
    assert policy is not None
    assert "default-src 'none'" in policy
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_same_records_in_any_order_give_the_same_bytes() -> None:
    records = fabricated_records()
    first = made(records, sheets=(sheet(),), svgs={"memory": SVG, "throughput_by_bytes": SVG})
    again = made(shuffled(records), sheets=(sheet(),), svgs={"throughput_by_bytes": SVG, "memory": SVG})
    assert first == again


def test_names_of_markup_are_escaped_in_text_and_in_data() -> None:
    text = made(fabricated_records())
    assert MARKUP not in text
    assert SCRIPT not in text
    assert text.count("<script") == 2
    assert any(one["system"] == MARKUP for one in carried(text)["records"])
    assert any(SCRIPT in words for words in carried(text)["environments"])


def test_a_diverged_run_leaves_valid_data() -> None:
    text = made(rounds("diverged", [1000.0, 1100.0], auroc=float("nan")))
    assert "NaN" not in text
    json.dumps(carried(text), allow_nan=False)


def test_links_lead_from_the_page_to_the_files(tmp_path: Path) -> None:
    source = written([*gpu_run(), *cpu_run()], tmp_path / "run a&b")
    links = [one["file"] for one in carried(page(source, (), {}, tmp_path / "site" / "deep"))["records"]]
    assert {Path(link).stem[-16:] for link in links} == {record.key for record in source.records}
    assert all(link.startswith("../../run%20a%26b/records/") for link in links)
    assert str(tmp_path) not in page(source, (), {}, tmp_path / "site" / "deep")


def test_files_that_were_left_out_are_named_relative_to_the_page(tmp_path: Path) -> None:
    source = written(gpu_run(), tmp_path)
    (tmp_path / "records" / "broken.json").write_text("{", encoding="utf-8")
    text = page(read([tmp_path]), (), {}, tmp_path)
    assert "<code>records/broken.json</code> is not JSON" in text
    assert "Files that were left out" not in page(source, (), {}, tmp_path)


def test_every_column_reads_a_field_and_every_view_has_columns() -> None:
    assert all(column.field in Row.__dataclass_fields__ and column.definition for column in COLUMNS)
    assert len({column.words for column in COLUMNS}) == len(COLUMNS)
    for view in set(View) - {View.ALL}:
        assert [column for column in COLUMNS if view in column.views], view


def test_standings_at_any_budget_are_those_of_the_last_change() -> None:
    groups = source_of(fabricated_records()).groups
    for board, table in zip(leaderboards(groups), budget_tables(groups), strict=True):
        sizes = [size for size, _ in table.standings]
        for budget in [*board.budgets, *sizes, *(size - 1 for size in sizes), *(size + 1 for size in sizes)]:
            fitting = [lines for size, lines in table.standings if size <= budget]
            found = fitting[-1] if fitting else ()
            expected = standings(board, budget)
            assert [line.cells[1] for line in found] == [place.contender.system for place in expected]
            assert [line.cells[0].split(",")[0] for line in found] == [str(place.place) for place in expected]
            assert ["too close to call" in line.cells[0] for line in found] == [place.tied for place in expected]
            assert [list(line.keys) for line in found] == [
                [run.key for run in place.contender.records] for place in expected
            ]


def test_sweep_scene_has_ties_and_changes_its_leader_with_the_budget() -> None:
    (table,) = budget_tables(source_of(sweep_records()).groups)
    leaders = {size: lines[0].cells[1] for size, lines in table.standings}
    assert set(leaders.values()) == {"cache[policy=lfu]", "fbgemm_uvm_caching[policy=lru]", "full_gpu"}
    assert any("too close to call" in line.cells[0] for _, lines in table.standings for line in lines)
    assert "wrong" not in {line.cells[1] for _, lines in table.standings for line in lines}


def test_page_without_a_leaderboard_says_so_and_has_no_slider() -> None:
    on_cpu = [run for run in cpu_run() if run.cell.system == "torchrec_uvm"]
    text = made(on_cpu)
    assert "No leaderboard: in these records no verified system offloads" in text
    assert 'id="budget-slider"' not in text
    assert carried(text)["steps"] == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (gpu_run(), ()),
        (cpu_run()[:2], ("Everything on this page was measured on a CPU.", "host-resident")),
        (cpu_run(), ("offloads to a file on disk",)),
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


def test_failure_without_a_reason_says_that_there_is_none() -> None:
    (failure,) = failures(tuple(group_records([record("a", status=Status.TIMEOUT)])))
    assert failure.how == "timeout: no reason was recorded"


def test_what_was_not_measured_follows_from_the_records() -> None:
    on_gpu = " ".join(not_measured(tuple(group_records(gpu_run()))))
    assert "Training on a CPU" in on_gpu
    assert "Real data" in on_gpu
    assert "Tables of published size" not in on_gpu
    assert "Optimizers without a record: sgd; adagrad; adam." in on_gpu
    on_cpu = " ".join(not_measured(tuple(group_records(cpu_run()))))
    assert "no record is of a CUDA device" in on_cpu
    assert "Real data" not in on_cpu
    assert "freq_cache" in on_cpu


def test_settings_and_machines_that_read_alike_are_told_apart() -> None:
    other_rate = record("a", setting={"lr": 0.2})
    other_machine = record("a", where=environment(machine="another", threads=8))
    names = Names(groups := tuple(group_records([record("a"), other_rate, other_machine])))
    settings = {names.setting(group.cell) for group in groups}
    devices = {names.device(group) for group in groups}
    assert settings == {
        f"synthetic, full, cache ratio 1 %, setting {cell('a', **changes).setting}" for changes in ({}, {"lr": 0.2})
    }
    assert devices == {
        "NVIDIA H100 80GB HBM3, machine gpumachine, 16 threads",
        "NVIDIA H100 80GB HBM3, machine another, 8 threads",
    }
    alone = group_records([record("a")])
    assert Names(alone).setting(alone[0].cell) == "synthetic, full, cache ratio 1 %"


def test_date_and_citation_come_from_the_records() -> None:
    late = record("late", started_at="2027-02-03T04:05:06+00:00")
    text = made([*gpu_run(), late])
    assert "<dd>2027-02-03</dd>" in text
    assert "Results of 2027-02-03, commit 0123456789, 16 records, measured on NVIDIA H100 80GB HBM3." in text


def test_sheets_are_shown_as_they_are_with_the_records_behind_them() -> None:
    records = gpu_run()
    source = source_of(records)
    keys = tuple(run.key for run in source.groups[0].rounds_by_system["cache[policy=lfu]"])
    text = page(source, (sheet(keys=keys),), {}, Path("out"))
    (at,) = re.findall(
        r'<tr data-records="([0-9 ]+)">\s*<th scope="row">full_<wbr>gpu</th>\s*<td class="number behind">12.5', text
    )
    found = [carried(text)["records"][int(position)] for position in at.split()]
    assert [(one["system"], one["round"]) for one in found] == [("cache[policy=lfu]", number) for number in (1, 2, 3)]
    assert '<td class="number behind">12.5</td>' in text
    for words in ("The paper&#39;s layout", "it = iteration.", "Avazu &amp; co", "A fact.", "A note."):
        assert words in text


def test_figures_come_in_order_without_prolog_and_with_ids_of_their_own() -> None:
    text = made(gpu_run(), svgs={"other_one": SVG, "memory": SVG, "miss_ratio": SVG})
    at = [text.index(f'id="{name}-clip"') for name in ("miss_ratio", "memory", "other_one")]
    assert at == sorted(at)
    assert 'clip-path="url(#memory-clip)"' in text
    assert 'href="#memory-mark"' in text
    assert "<!DOCTYPE svg" not in text
    assert "<figcaption>other one.</figcaption>" in text


def test_a_figure_that_is_no_svg_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="figure memory is no SVG"):
        made(gpu_run(), svgs={"memory": "not a picture"})


def test_records_behind_a_number_have_the_value_of_their_own_round_and_copy() -> None:
    """Half and twice the baseline's speed; its second copy at 0.9 and 1.1 of it."""
    records = [
        *rounds("full_gpu", [0.9 * BASELINE, 1.1 * BASELINE], noise=0.001),
        *rounds("cache[policy=lfu]", [0.5 * BASELINE, 2 * BASELINE]),
    ]
    text = made(records)
    data = carried(text)
    ratio, speed = data["headers"]["vs full_gpu"], data["headers"]["samples/s"]

    def behind(row: str) -> list[tuple[float, float]]:
        (at,) = re.findall(rf'data-records="([0-9 ]+)"[^>]*>\s*<th scope="row" data-value="{re.escape(row)}"', text)
        values = [data["records"][int(position)]["values"] for position in at.split()]
        return [(float(found[ratio].split()[0]), float(found[speed].replace(",", "")) / BASELINE) for found in values]

    assert behind("cache[policy=lfu]") == [(0.5, 0.5), (2, 2)]
    assert behind("full_gpu") == [(1, 1), (1, 1)]
    assert behind("full_gpu (again)") == [(0.9, 0.9), (1.1, 1.1)]
    assert [one["checks"] for one in data["records"]] == ["2 of 2 checks passed"] * 6
    assert [one["commit"] for one in data["records"]] == ["0123456789"] * 6


def test_page_opens_with_the_verdict_and_one_picture_and_tables_come_below() -> None:
    source = source_of(gpu_run())
    text = page(source, (sheet(),), {"memory": SVG, "throughput_by_bytes": SVG}, Path("out"))
    (sentences,) = (verdict(group) for group in source.groups)
    at = [
        *(text.index(str(escape(sentence))) for sentence in sentences),
        text.index('id="throughput_by_bytes-clip"'),
        text.index('class="lead"'),
        text.index("<nav"),
        text.index("<table"),
        text.index('id="memory-clip"'),
    ]
    assert at == sorted(at)
    assert text.count('id="throughput_by_bytes-clip"') == 1


def test_verdicts_are_told_apart_and_the_usual_cache_size_stands_first() -> None:
    (alone,) = verdicts(tuple(group_records(rounds("full_gpu", [BASELINE]))))
    assert (alone.heading, alone.others) == ("Criteo Kaggle", ())
    sweep = [run for share in (0.005, 0.01, 0.05) for run in rounds("a", [1.0], setting={"cache_ratio": share})]
    (of_sweep,) = verdicts(tuple(group_records(sweep)))
    assert of_sweep.heading == "Criteo Kaggle, cache ratio 1 %"  # that of scale full
    assert [other.heading.split(", ")[1] for other in of_sweep.others] == ["cache ratio 0.5 %", "cache ratio 5 %"]
    assert made(sweep).count("<details>") == 1
    sizes = [{"cache_ratio": None, "device_budget_bytes": size * 2**20} for size in (4, 8)]
    budgets = [run for size in sizes for run in rounds("a", [1.0], setting=size)]
    assert [one.heading for one in verdicts(tuple(group_records(budgets)))] == ["Criteo Kaggle, device budget 8 MiB"]


def test_columns_without_a_value_in_any_row_are_not_shown() -> None:
    def heads(records: list[Any]) -> set[str]:
        table = made(records).split('<table id="measurements-table">')[1].split("</thead>")[0]
        return set(re.findall(r"<th[^>]*>([^<]*)</th>", table))

    assert {"GPU GB allocated", "hit rate", "misses, % of optimal"} <= heads(gpu_run())
    on_cpu = heads(cpu_run())
    assert "hit rate" in on_cpu
    assert not {"GPU GB allocated", "GPU GB reserved", "misses, % of optimal"} & on_cpu
    empty = replace(sheet().blocks[0], lines=(Line(cells=("others", "n/a")),))
    assert [head.words for head in without_empty_columns(empty).heads] == ["system"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "--systems full_gpu,freq_cache[policy=lfu,tier=file] --workloads avazu,criteo_kaggle@drift --scale smoke",
        "--systems full_gpu,torchrec_uvm --workloads all --scale small --cache-ratio 0.005,0.015,0.05 --rounds 2",
        "--systems freq_cache --workloads avazu --scale full --device-budget 64MiB,256MiB --optimizer adam --seed 7",
        "--systems freq_cache --workloads avazu --scale smoke --steps 8 --batch-size 64 --lr 0.25 --embedding-dim 8 "
        "--frequency-prefix 0.5 --frequencies sketch:1MB",
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


def planned(options: str) -> list[Cell]:
    result = CliRunner().invoke(app, [*shlex.split(options), "--device", "cpu", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    known = Cell.model_fields.keys()
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [Cell(**{name: value for name, value in line.items() if name in known}) for line in lines]


def test_no_number_of_a_system_with_a_wrong_answer_is_carried() -> None:
    data = carried(made(fabricated_records()))
    half = [one for one in data["records"] if one["system"] == "half"]
    assert len(half) == 2
    speed, status = data["headers"]["it/s"], data["headers"]["status"]
    assert [one["values"][speed] for one in half] == ["n/a", "n/a"]
    assert sorted(one["values"][status] for one in half) == ["ok", "wrong_answer"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back"),
    [
        *((front, back) for front in ("text", "accent", "quiet") for back in ("ground", "panel")),
        ("text", "caveat"),
        ("text", "others"),
        ("accent", "others"),
    ],
)
def test_text_stands_out_from_its_ground_in_both_schemes(scheme: str, front: str, back: str) -> None:
    assert contrast(palette(scheme)[front], palette(scheme)[back]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_edges_of_controls_stand_out(scheme: str) -> None:
    assert contrast(palette(scheme)["edge"], palette(scheme)["ground"]) >= 3


def test_style_has_no_colour_outside_the_palette() -> None:
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    body = style[style.index("* { box-sizing") :]
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s])", body) == ["#ffffff"]  # the card of a figure
    used = set(re.findall(r"var\(--(\w+)\)", body))
    assert used == set(palette("light"))


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def palette(scheme: str) -> dict[str, str]:
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", style)
    return {name: light if scheme == "light" else dark for name, light, dark in found}


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio of two sRGB colours."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
