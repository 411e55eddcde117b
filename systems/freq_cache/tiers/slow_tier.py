"""Interface of a slow tier, which holds all rows of a cache as records."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from systems.contract import Purpose, Tier
from systems.freq_cache.tiers.layout import RowLayout


class SlowTier(ABC):
    """`rows` records. One thread may read while another writes, as long as they do not touch the same row.

    Attributes:
        rows: Number of rows.
        layout: Layout of a record.
    """

    def __init__(self, *, rows: int, layout: RowLayout) -> None:
        self.rows = rows
        self.layout = layout

    @abstractmethod
    def read(self, rows: Tensor, out: Tensor) -> None:
        """Copy records out.

        Args:
            rows: int64 `[n]` on the host, in any order.
            out: `[n, layout.width]` on the host, contiguous.
        """

    @abstractmethod
    def write(self, rows: Tensor, records: Tensor) -> None:
        """Overwrite records.

        Args:
            rows: int64 `[n]` on the host, each row once.
            records: `[n, layout.width]` on the host, contiguous.

        Raises:
            OSError: they could not be written; earlier rows stay readable, and the same call may be repeated.
        """

    @abstractmethod
    def memory(self) -> Mapping[tuple[Tier, Purpose], int]:
        """Bytes by tier and purpose."""

    def close(self) -> None:  # noqa: B027 - most tiers hold nothing open
        """Close the files and release the memory that the tier holds."""
