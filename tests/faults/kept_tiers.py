"""A file tier that is alone in its directory, and commits as those of a collection do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

    def commit(self, extra: Mapping[str, Any]) -> None:
        self.commits.commit([self.save_map], extra)

    def close(self) -> None:
        super().close()
        self.commits.close()
