"""The pages on device memory: tables and figure are of the records, and what the text says of them holds."""

from pathlib import Path

from suite.records.groups import published_rows
from tests.docs.commands import module_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "device_memory"
PAGE, README = (
    " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("docs/virtual-cuda.md", "README.md")
)
MADE = module_of(FOLDER / "memory_table.py")
ROWS = MADE.rows()


def test_every_place_says_that_the_device_is_virtual() -> None:
    for text in (PAGE, README):
        assert "exact for torch's allocator, without workspaces" in text
        assert "beside the published figures: virtual device" in text
    assert MADE.LABEL in (FOLDER / "device_memory.md").read_text(encoding="utf-8")


def test_what_the_page_says_of_ours_beside_the_published_rows() -> None:
    apart: dict[tuple[str, str], tuple[float, float, float]] = {}  # ours from theirs: allocated, reserved; GiB
    for workload in ("criteo_kaggle", "avazu", "criteo_1tb"):
        for theirs in published_rows(workload):
            row = MADE.find(ROWS, workload, MADE.OURS[theirs.system])
            allocated, reserved = MADE.read_as_published(row) / 2**30, row["peak_reserved_bytes"] / 2**30
            more = allocated - theirs.gpu_allocated_gb
            relative = abs(more) / theirs.gpu_allocated_gb
            apart[workload, theirs.system] = relative, theirs.gpu_reserved_gb / reserved - 1, more
    relative, _, more = apart.pop(("criteo_1tb", "torchrec"))  # the sixth
    assert relative > 0.2
    assert f"{more:.0f} GiB of tables were elsewhere" in PAGE
    assert MADE.find(ROWS, "criteo_1tb", "full_gpu")["peak_reserved_bytes"] > MADE.CARD_BYTES
    assert "do not fit a card of 80 GB" in PAGE
    assert len(apart) == 5
    assert max(relative for relative, _, _ in apart.values()) < 0.02, apart
    assert "ours and theirs agree within 2 % in five of six rows" in PAGE
    above = [100 * reserved for _, reserved, _ in apart.values()]
    assert f"Published reserved bytes are {min(above):.0f} to {max(above):.0f} % above these peaks" in PAGE


def test_a_gradient_of_an_id_is_520_bytes() -> None:
    row = MADE.find(ROWS, "avazu", "colossalai_cache")
    assert MADE.read_as_published(row) - row["allocated_after_step_bytes"] == 520 * row["lookups"]
    assert "520 bytes per id, a row and an int64" in PAGE
