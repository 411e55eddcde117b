"""A file tier that is alone in its directory, and commits as those of a collection do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from systems.freq_cache.tiers.commits import Commits
from systems.freq_cache.tiers.file import FileTier


class KeptTier(FileTier):
    """Rows in `cache_0` of a directory, with the directory's commits."""

    def __init__(self, directory: Path, **choices: Any) -> None:
        self.commits = Commits(directory, [None])
        try:
            super().__init__(self.commits, 0, **choices)
        except BaseException:
            self.commits.close()
            raise

    @property
    def committed_extra(self) -> Mapping[str, Any]:
        """What went with the last commit that counts; empty before the first."""
        extra: Mapping[str, Any] = self.commits._read()["extra"]
        return extra

    def held(self, rows: Tensor | None = None) -> Tensor:
        """The records of rows, or of all, read into memory of other bytes."""
        rows = torch.arange(self.rows) if rows is None else rows
        out = self.layout.empty(rows.numel())
        out.view(torch.uint8).fill_(0xAB)
        self.read(rows, out)
        return out

    def commit(self, extra: Mapping[str, Any]) -> None:
        self.commits.commit([self.save_map], extra)

    def close(self) -> None:
        super().close()
        self.commits.close()
