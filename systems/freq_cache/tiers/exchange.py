"""Rows exchanged by the device itself: one kernel gathers records from host memory, or scatters them there.

It keeps to a few programs, so that it takes few multiprocessors from training while it waits for the link, as fbgemm's
SSD tables do. Their `masked_index_select` and `masked_index_put` know no int32 records and no record of row-wise
Adagrad that is not padded, and the CPU build has neither: nothing could be tested without a device.

Records go by way of staging on the device, not straight into slots: until the backward of a batch has run, the slots
that the next one fills are its own. Only what was read ahead keeps the link off the stream that trains.

Triton comes with CUDA builds of torch. This module imports it, so it is imported only where it is used.
`TRITON_INTERPRET=1`, set before the import, runs the kernel on a CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 16
"""At most so many programs copy at a time, each on one multiprocessor. fbgemm takes 4 of an A100, 16 of an H100."""
_WARPS = 16
_WORDS = 16 * 32 * _WARPS
"""On their way in one program: 16 for every thread. With words of 4 B that is 32 KiB, in all 512 KiB, several times
what a link of 64 GB/s has under way in 2 microseconds."""
_MOST_COLUMNS = 1024


def gather(records: Tensor, rows: Tensor, out: Tensor) -> None:
    """Copy `records[rows]` to `out`, on the current stream of the current device.

    Args:
        records: `[all, width]`, contiguous, on the device or in host memory that it sees.
        rows: int32 `[n]` on the device; int64, too, for which other kernels are compiled.
        out: `[n, width]` on the device, contiguous, of the type of `records`.
    """
    copy_rows(records, rows, out, gathers=True)


def scatter(records: Tensor, rows: Tensor, values: Tensor) -> None:
    """Copy `values` to `records[rows]`, each there once. Arguments as of `gather`.

    The host sees the rows once an event that is recorded behind it has come.
    """
    copy_rows(records, rows, values, gathers=False)


def compile_for(records: Tensor) -> None:
    """Compile all that exchanging records like these will ever launch, so that no step waits for the compiler.

    Triton compiles a kernel for packed records that begin at a multiple of 16 bytes and another for those that do not.
    Where a record is no multiple of 16 bytes, a lot behind others may begin at either.

    Raises:
        RuntimeError: there is no C compiler, with which Triton builds what launches a kernel.
    """
    lots = torch.zeros(2, records.shape[1], dtype=records.dtype, device=records.device)
    row = torch.zeros(1, dtype=torch.int32, device=records.device)
    for packed in lots.split(1):
        for gathers in (True, False):
            copy_rows(lots, row, packed, gathers=gathers)


def copy_rows(records: Tensor, rows: Tensor, packed: Tensor, *, gathers: bool) -> None:
    count = packed.shape[0]
    if not count:
        return
    words, packed_words = _words(records), _words(packed)
    width = words.shape[1]
    columns = min(triton.next_power_of_2(width), _MOST_COLUMNS)
    block = _WORDS // columns
    grid = (min(PROGRAMS, triton.cdiv(count, block)),)
    _exchange[grid](words, rows, packed_words, count, width, columns, block, gathers, num_warps=_WARPS)


def _words(records: Tensor) -> Tensor:
    """The same bytes as the largest of a few integer types that a record is a multiple of."""
    record_bytes = records.shape[1] * records.element_size()
    return records.view(next(t for t in (torch.int32, torch.int16, torch.uint8) if record_bytes % t.itemsize == 0))


# A kernel is compiled for each combination of constants. Were it compiled anew for counts and addresses of another
# divisibility as well, which is Triton's habit, some later step would wait for the compiler.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows"])
def _exchange(
    records,
    rows,
    packed,
    count,
    width: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    gathers: tl.constexpr,
):
    """`packed[i] = records[rows[i]]` for all i below `count`, or the reverse, a block of rows at a time."""
    first = tl.program_id(0) * block
    while first < count:  # not range(), whose bounds Triton 3.6 cannot interpret with numpy 2.4
        place = first + tl.arange(0, block)
        row = tl.load(rows + place, mask=place < count).to(tl.int64)
        for left in tl.static_range(0, width, columns):
            column = left + tl.arange(0, columns)
            mask = (place < count)[:, None] & (column < width)[None, :]
            there = records + row[:, None] * width + column[None, :]
            here = packed + place.to(tl.int64)[:, None] * width + column[None, :]
            if gathers:
                tl.store(here, tl.load(there, mask=mask), mask=mask)
            else:
                tl.store(there, tl.load(here, mask=mask), mask=mask)
        first += tl.num_programs(0) * block
