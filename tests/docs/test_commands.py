"""Every command that the front page and `docs/` show is carried out, made small or sent elsewhere in plain sight."""

import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from suite.__main__ import COMMANDS
from tests.docs.commands import PAGES, ROOT, Checkout, Elsewhere, Run, commands
from tests.docs.rules import RULES
from tests.raw_files import write_raw
from workloads.prepare.formats import FORMATS

# Commands run in this process, where other tests have imported `suite.__main__` before.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")]


def of_kind(kind: type) -> list[str]:
    return [command for command, rule in RULES.items() if isinstance(rule, kind)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with the files that the pages' commands take as given."""
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    folder = made.folder
    write_raw(FORMATS["criteo_kaggle"], folder / "train.txt", 3_000, seed=0, packed=False)
    write_raw(FORMATS["avazu"], folder / "train.gz", 500, seed=0, packed=True)
    for day in (0, 1, 10):
        write_raw(FORMATS["criteo_1tb"], folder / f"day_{day}.gz", 500, seed=day, packed=True)
    draw = np.random.default_rng(0)
    columns = {
        "when": np.arange(4_000),
        "bought": draw.integers(0, 2, 4_000),
        "price": draw.random(4_000).round(2),
        "user": [f"user {number}" for number in draw.zipf(1.5, 4_000)],
    }
    months = pl.DataFrame(columns)
    months[:2_000].write_parquet(folder / "january.parquet")
    months[2_000:].write_csv(folder / "february.csv")
    schema = (ROOT / "docs" / "datasets.md").read_text().split("`shop.toml`:\n\n```toml\n")[1].split("```")[0]
    (folder / "shop.toml").write_text(schema)
    np.save(folder / "ids.npy", draw.integers(0, 5_000, (8 * 256, 3)))
    shutil.copy(ROOT / "suite" / "advise" / "hardware" / "a100.json", folder / "my_gpu.json")
    return made


def test_every_command_of_a_page_has_a_rule() -> None:
    new = [f"{command}  ({', '.join(pages)})" for command, pages in commands().items() if command not in RULES]
    assert new == [], (
        "these commands are on a page, and nothing runs them: give each a line in RULES of tests/docs/rules.py "
        "(Run with options that make it small; Elsewhere, or the reason why it cannot run)"
    )


def test_every_rule_is_of_a_command_that_a_page_shows() -> None:
    stale = RULES.keys() - commands().keys()
    assert stale == set(), "no page shows these any more: take them out of RULES"


def test_every_command_that_there_is_stands_on_a_page() -> None:
    there = {f"python -m suite {name}" for name in COMMANDS} | {
        f"python -m workloads {name}" for name in ("prepare", "verify", "describe")
    }
    shown = {" ".join(command.split()[:4]) for command in commands()}
    assert there - shown == set()


@pytest.mark.slow
@pytest.mark.parametrize("command", of_kind(Run))
def test_command_does_what_its_page_says(command: str, checkout: Checkout) -> None:
    checkout.carry_out(command, RULES)


@pytest.mark.parametrize("command", of_kind(Elsewhere))
def test_command_is_run_by_the_test_that_its_rule_names(command: str) -> None:
    rule = RULES[command]
    assert isinstance(rule, Elsewhere)
    found = ROOT / rule.test
    tests = found.rglob("test_*.py") if found.is_dir() else [found]
    assert any(rule.program in test.read_text(encoding="utf-8") for test in tests)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_pictures_and_programs_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text):
        assert anchor in _anchors(page.parent / target if target else page), f"{target}#{anchor}"
    assert "![](" not in text, "a picture needs words for those who do not see it"
    named = re.findall(r"(?<![\w/.])(?:results|tests|docs|suite)/[\w/]+\.py", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\ntitle: {project['name']}\n" in citation
    assert "arxiv.org/abs/2208.05321" in citation
