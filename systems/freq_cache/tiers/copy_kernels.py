"""Copies of rows by the device: a kernel gathers records from pinned host memory, or scatters them to it.

It runs in few programs, so that it takes few multiprocessors from training while it waits for the link, as fbgemm's
SSD tables do. Their `masked_index_select` and `masked_index_put` support neither int32 records nor unpadded records of
row-wise Adagrad, and the CPU build has neither of them, so nothing could be tested without a device.

Records are copied through staging on the device, not directly into slots: until the backward of a batch has run, it
uses the slots that the next batch fills. Reading ahead keeps transfers off the compute stream.

Triton comes with CUDA builds of torch. This module imports it, so it is imported only where it is used.
`TRITON_INTERPRET=1`, set before the import, runs the kernel on a CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 16
"""Maximum concurrent programs, each on one multiprocessor. fbgemm uses 4 on an A100, 16 on an H100."""
_WARPS = 16
_WORDS = 16 * 32 * _WARPS
"""Words in flight per program, 16 per thread: 32 KiB with words of 4 B, 512 KiB in all, several times the bytes in
flight on a link of 64 GB/s with a latency of 2 microseconds."""
_MOST_COLUMNS = 1024


def compile_for(records: Tensor) -> None:
    """Compile all kernels that copies of records like these will launch, so that no step waits for the compiler.

    Triton compiles a kernel for packed records that start at a multiple of 16 bytes and another for other starts. If a
    record's size is not a multiple of 16 bytes, a chunk after others may start at either.

    Raises:
        RuntimeError: there is no C compiler, which Triton needs to build kernel launchers.
    """
    lots = torch.zeros(2, records.shape[1], dtype=records.dtype, device=records.device)
    row = torch.zeros(1, dtype=torch.int32, device=records.device)
    for packed in lots.split(1):
        for gathers in (True, False):
            copy_rows(lots, row, packed, gathers=gathers)


def copy_rows(records: Tensor, rows: Tensor, packed: Tensor, *, gathers: bool) -> None:
    """Copy `records[rows]` to `packed`, or the reverse, on the current stream of the current device.

    The host sees rows that were written once an event recorded after this call has completed.

    Args:
        records: `[all, width]`, contiguous, on the device or in host memory mapped for it.
        rows: int32 `[n]` on the device, each once if they are written; or int64, for which other kernels are compiled.
        packed: `[n, width]` on the device, contiguous, of the type of `records`.
        gathers: Whether `packed` is written.
    """
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
    """The records viewed as the largest of a few integer types that a record is a multiple of."""
    record_bytes = records.shape[1] * records.element_size()
    return records.view(next(t for t in (torch.int32, torch.int16, torch.uint8) if record_bytes % t.itemsize == 0))


# A kernel is compiled for each combination of constants. Without these arguments Triton would also compile it again for
# counts and addresses of another divisibility, and some later step would wait for the compiler.
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
