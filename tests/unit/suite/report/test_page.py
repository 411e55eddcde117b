"""The page as text: what it says, what it carries, and that the same records always give the same bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markupsafe import escape

from suite.records.groups import group_records
from suite.records.status import Status
from suite.report.page.page import page
from suite.report.page.statements import verdicts
from suite.tables.columns import COLUMNS, View
from suite.tables.comparison import comparison
from suite.tables.rows import Row
from suite.tables.verdict import verdict
from tests.browser.page_scenes import MARKUP, SCRIPT, fabricated_records, written
from tests.unit.suite.fabricate import BASELINE, cpu_run, gpu_run, record, rounds, shuffled, verification
from tests.unit.suite.report.page_texts import PAGE, SVG, Outline, carried, made, sheet, source_of


def test_page_is_well_formed_and_every_id_is_its_own() -> None:
    outline = Outline(
        made(fabricated_records(), sheets=(sheet(),), svgs={"quality_by_bytes": SVG, "throughput_by_bytes": SVG})
    )
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [attributes.get("aria-labelledby") for _, attributes in outline.elements]
    assert {name for name in labelled if name} - {"behind-title"} <= set(ids)
    anchors = [link["href"] for link in outline.all("a")]
    assert all((link or "")[1:] in ids for link in anchors)


def test_every_table_has_a_caption_and_every_head_a_scope() -> None:
    text = made(fabricated_records(), sheets=(sheet(),))
    outline = Outline(text)
    assert len(outline.all("caption")) == len(outline.all("table")) >= 2
    assert all(head.get("scope") in ("col", "row") for head in outline.all("th"))
    controls = [*outline.all("select"), *outline.all("input")]
    assert len(controls) >= 7
    # Every control stands in a label, or is named by one
    assert text.count("<label") == len(controls)


def test_nothing_is_fetched_and_only_the_page_s_own_script_may_run() -> None:
    outline = Outline(made(fabricated_records(), svgs={"quality_by_bytes": SVG}))
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
    first = made(records, sheets=(sheet(),), svgs={"quality_by_bytes": SVG, "throughput_by_bytes": SVG})
    again = made(shuffled(records), sheets=(sheet(),), svgs={"throughput_by_bytes": SVG, "quality_by_bytes": SVG})
    assert first == again


def test_names_of_markup_are_escaped_in_text_and_in_data() -> None:
    text = made(fabricated_records())
    assert MARKUP not in text
    assert SCRIPT not in text
    assert text.count("<script") == 2
    assert any(one["system"] == MARKUP for one in carried(text)["records"])
    assert any(SCRIPT in words for words in carried(text)["environments"])


def test_links_lead_from_the_page_to_the_files(tmp_path: Path) -> None:
    source = written([*gpu_run(), *cpu_run()], tmp_path / "run a&b")
    text = page(source, comparison(source.groups), (), {}, tmp_path / "site" / "deep")
    links = [one["file"] for one in carried(text)["records"]]
    assert {Path(link).stem[-16:] for link in links} == {record.key for record in source.records}
    assert all(link.startswith("../../run%20a%26b/records/") for link in links)
    assert str(tmp_path) not in text


def test_every_column_reads_a_field_and_every_view_has_columns() -> None:
    assert all(column.field in Row.__dataclass_fields__ and column.definition for column in COLUMNS)
    assert len({column.words for column in COLUMNS}) == len(COLUMNS)
    for view in set(View) - {View.ALL}:
        assert [column for column in COLUMNS if view in column.views], view


def test_sheets_are_shown_as_they_are_with_the_records_behind_them() -> None:
    records = gpu_run()
    source = source_of(records)
    keys = tuple(run.key for run in source.groups[0].rounds_by_system["cache[policy=lfu]"])
    text = page(source, comparison(source.groups), (sheet(keys=keys),), {}, Path("out"))
    (at,) = re.findall(
        r'<tr data-records="([0-9 ]+)">\s*<th scope="row">full_<wbr>gpu</th>\s*<td class="number behind">12.5', text
    )
    found = [carried(text)["records"][int(position)] for position in at.split()]
    assert [(one["system"], one["round"]) for one in found] == [("cache[policy=lfu]", number) for number in (1, 2, 3)]
    assert '<td class="number behind">12.5</td>' in text
    for words in ("The paper&#39;s layout", "it = iteration.", "Avazu &amp; co", "A fact.", "A note."):
        assert words in text


def test_figures_come_in_order_without_prolog_and_with_ids_of_their_own() -> None:
    text = made(gpu_run(), svgs={"quality_by_bytes": SVG, "miss_ratio": SVG})
    assert text.index('id="miss_ratio-clip"') < text.index('id="quality_by_bytes-clip"')
    assert 'clip-path="url(#quality_by_bytes-clip)"' in text
    assert 'href="#quality_by_bytes-mark"' in text
    assert "<!DOCTYPE svg" not in text


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
    text = made(gpu_run(), sheets=(sheet(),), svgs={"quality_by_bytes": SVG, "throughput_by_bytes": SVG})
    (sentences,) = (verdict(group) for group in group_records(gpu_run()))
    at = [
        *(text.index(str(escape(sentence))) for sentence in sentences),
        text.index('id="throughput_by_bytes-clip"'),
        text.index('class="lead"'),
        text.index("<nav"),
        text.index("<table"),
        text.index('id="quality_by_bytes-clip"'),
    ]
    assert at == sorted(at)
    assert text.count('id="throughput_by_bytes-clip"') == 1


def test_verdicts_are_told_apart_and_the_usual_cache_size_stands_first() -> None:
    sweep = [run for share in (0.005, 0.01, 0.05) for run in rounds("a", [1.0], setting={"cache_ratio": share})]
    (of_sweep,) = verdicts(tuple(group_records(sweep)))
    assert of_sweep.heading.endswith(", cache ratio 1 %")  # that of scale full
    assert [one.heading.split(", ")[-1] for one in of_sweep.others] == ["cache ratio 0.5 %", "cache ratio 5 %"]
    assert made(sweep).count("<details>") == 1
    sizes = [{"cache_ratio": None, "device_budget_bytes": size * 2**20} for size in (4, 8)]
    budgets = [run for size in sizes for run in rounds("a", [1.0], setting=size)]
    assert [one.heading.split(", ")[-1] for one in verdicts(tuple(group_records(budgets)))] == ["device budget 8 MiB"]


def test_columns_without_a_value_in_any_row_are_not_shown() -> None:
    def heads(records: list[Any]) -> set[str]:
        table = made(records).split('<table id="measurements-table">')[1].split("</thead>")[0]
        return set(re.findall(r"<th[^>]*>([^<]*)</th>", table))

    assert {"GPU GB allocated", "hit rate", "misses, % of optimal"} <= heads(gpu_run())
    on_cpu = heads(cpu_run())
    assert "hit rate" in on_cpu
    assert not {"GPU GB allocated", "GPU GB reserved", "misses, % of optimal"} & on_cpu


def test_beside_a_baseline_that_was_wrong_once_no_round_has_a_ratio() -> None:
    wrong = record("full_gpu", round=1, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    data = carried(made([record("full_gpu"), wrong, *rounds("cache", [0.5 * BASELINE, 2 * BASELINE])]))
    ratio, speed = data["headers"]["vs full_gpu"], data["headers"]["it/s"]
    values = [one["values"] for one in data["records"] if one["system"] == "cache"]
    assert [found[ratio] for found in values] == ["n/a", "n/a"]
    assert [found[speed] for found in values] == ["50.00", "200.0"]  # its own


def test_no_number_of_a_system_with_a_wrong_answer_is_carried() -> None:
    data = carried(made(fabricated_records()))
    half = [one for one in data["records"] if one["system"] == "half"]
    assert len(half) == 2
    speed, status = data["headers"]["it/s"], data["headers"]["status"]
    assert [one["values"][speed] for one in half] == ["n/a", "n/a"]
    assert sorted(one["values"][status] for one in half) == ["ok", "wrong_answer"]
