"""What `--list` says of systems, in words of people who choose one."""

import io

import pytest
import torch
from rich.console import Console

from suite.run.console.listing import show_choices
from suite.run.console.options import Device, choose_device
from systems.fbgemm.tbe_system import FullGPU
from systems.fbgemm.uvm import FbgemmUVM
from systems.no_embeddings import NoEmbeddings
from systems.registry import SYSTEMS


class Undescribed(NoEmbeddings):
    """Says no more than this line.

    And this one, which is for readers of the code.
    """

    about = ""


class Unbuildable(NoEmbeddings):
    """Runs out of memory."""

    def __init__(self, *_: object) -> None:
        raise torch.OutOfMemoryError("no byte left")


def listed(name: str) -> list[str]:
    """The lines under a system's name."""
    out = io.StringIO()
    show_choices(Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 100
    start = next(number for number, line in enumerate(lines) if line.split(" [")[0] == f"  {name}") + 1
    stop = next(number for number in range(start, len(lines)) if not lines[number].startswith("      "))
    return [line.strip() for line in lines[start:stop]]


@pytest.mark.skipif(choose_device(Device.AUTO)[0] != "cpu", reason="on a GPU it is no other system")
def test_list_says_where_rows_are_and_what_becomes_of_it_on_a_cpu() -> None:
    *about, here = listed("fbgemm_uvm")
    assert " ".join(about) == FbgemmUVM.about
    assert here == "On this CPU: host-resident, the very kernel of full_gpu, so it is not timed again."
    assert listed("freq_cache")[-1] == "On this CPU: RAM + slots in RAM; it knows training frequencies."
    assert " ".join(listed("full_gpu")[:-1]) == FullGPU.about


def test_system_without_a_sentence_for_users_is_listed_by_its_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "mine", f"{__name__}:Undescribed")
    assert listed("mine")[0] == "Says no more than this line."
