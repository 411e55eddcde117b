"""The programs of device memory: rows stay unwritten, cells are asked for once, and tables and pages are written."""

import json
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.records.environment import VIRTUAL_DEVICE
from tests.unit.suite.fabricate import environment
from tests.unit.suite.report.report_scenes import alike

TERABYTE_ROWS = 1 << 31


def written_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def test_tables_larger_than_memory_are_zero_and_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import measure_memory

    monkeypatch.setattr(measure_memory, "disable_huge_pages", lambda: None)  # it would be so for all tests to come
    before = written_bytes()
    with measure_memory.lazy_host_memory():
        table = torch.zeros(TERABYTE_ROWS, 128)
        pages = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        torch.nn.init.uniform_(table)
        table.uniform_()
        weights = torch.empty((TERABYTE_ROWS, 128), dtype=torch.float16, requires_grad=True)
        small = torch.empty(4, 4).uniform_(1, 2)
        counted = torch.zeros(1 << 24, dtype=torch.int64, device="meta")
    assert table.shape == (TERABYTE_ROWS, 128)
    assert table.nbytes == 1 << 40
    assert weights.dtype is torch.float16
    assert weights.requires_grad
    assert bool((small >= 1).all())
    assert counted.device.type == "meta"
    table[TERABYTE_ROWS - 1] = 3
    assert float(table[TERABYTE_ROWS - 1, 127]) == 3
    assert float(table[TERABYTE_ROWS - 2, 0]) == 0
    assert written_bytes() - before < 64 << 20
    pages.close()


def test_a_cell_of_published_size_is_measured_once_and_another_device_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import measure_memory

    ran = []

    def figures(cell: Any) -> dict[str, Any]:
        assert (cell.embedding_dim, cell.batch_size, cell.max_rows, cell.device) == (128, 16_384, None, "cuda")
        ran.append(cell.system)
        return {"status": "crashed", "reason": "because"} if cell.system == "full_gpu" else {"status": "ok"}

    here = environment().model_copy(update={"gpu": VIRTUAL_DEVICE})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measure_memory, "capture", lambda threads: here)
    monkeypatch.setattr(measure_memory, "_in_process", figures)
    out = tmp_path / "memory.json"
    command = ["--systems", "freq_cache,full_gpu", "--workloads", "avazu", "--out", str(out)]
    assert measure_memory.main(command) == 1
    assert ran == ["freq_cache", "full_gpu"]
    assert measure_memory.main([*command, "--cache-ratio", "0.015"]) == 1
    assert measure_memory.main(command) == 1  # what crashed is tried again
    assert ran == ["freq_cache", "full_gpu", "freq_cache", "full_gpu", "full_gpu"]
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["system"], cell["cache_ratio"], cell["status"]) for cell in cells] == [
        ("freq_cache", 0.01, "ok"),
        ("freq_cache", 0.015, "ok"),
    ]
    uvm = "fbgemm_uvm,torchrec_uvm[memory=host_mapped]"  # managed where nothing is said
    assert measure_memory.main(["--systems", uvm, "--workloads", "avazu", "--out", str(tmp_path / "uvm.json")]) == 0
    assert ran[5:] == ["fbgemm_uvm[memory=managed]", "torchrec_uvm[memory=host_mapped]"]
    monkeypatch.setattr(measure_memory, "capture", lambda threads: environment())
    with pytest.raises(SystemExit, match="name another file"):
        measure_memory.main(command)


def test_everything_is_written_anew_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python results/device_memory/memory_table.py --write`"""
    import memory_table

    pages = {}
    for page, table in memory_table.PAGES.items():
        pages[tmp_path / page.name] = table
        emptied = memory_table.in_page(page.read_text(encoding="utf-8"), "")
        (tmp_path / page.name).write_text(emptied, encoding="utf-8")
    content = (memory_table.HERE / "memory.json").read_bytes()
    (tmp_path / "memory.json").write_bytes(content)
    before = {page.name: page.read_text(encoding="utf-8") for page in memory_table.PAGES}
    here = memory_table.HERE
    monkeypatch.setattr(memory_table, "HERE", tmp_path)
    monkeypatch.setattr(memory_table, "PAGES", pages)
    monkeypatch.setattr("sys.argv", ["memory_table.py", "--write"])
    memory_table.main()
    assert {page.name: page.read_text(encoding="utf-8") for page in pages} == before
    assert (tmp_path / "device_memory.md").read_text() == (here / "device_memory.md").read_text()
    assert alike(here / "device_memory.svg", tmp_path / "device_memory.svg")
    assert len(memory_table.published_table(memory_table.rows()).splitlines()) == 2 + 6
