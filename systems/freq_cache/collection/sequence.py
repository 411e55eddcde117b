"""The cache without pooling: a drop-in for torchrec's `EmbeddingCollection`."""

from collections.abc import Sequence
from typing import Any

from torch.fx import Proxy
from torchrec import EmbeddingBagConfig, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor, PoolingType
from torchrec.modules.embedding_modules import get_embedding_names_by_table

from systems.freq_cache.collection.access import one_at_a_time
from systems.freq_cache.collection.base import CachedTables
from systems.freq_cache.collection.batches import as_leaf


class CachedEmbeddingCollection(CachedTables):
    """`CachedEmbeddingBagCollection` without pooling, a row for every id: replaces torchrec's `EmbeddingCollection`.

    Args:
        tables: As for an `EmbeddingCollection`, all of one width.
        need_indices: Outputs have the ids in the place of weights.
        choices: Arguments of `CachedEmbeddingBagCollection`, except `is_weighted`.

    Raises:
        ValueError: the tables or choices do not go together; the message says what to change.
    """

    rows_key = "embeddings"
    takes_weights = False

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        *,
        need_indices: bool = False,
        **choices: Any,  # noqa: ANN401 - of several types
    ) -> None:
        widths = {table.name: table.embedding_dim for table in tables}
        if len(set(widths.values())) > 1:
            raise ValueError(f"tables of a sequence collection have one width, not {widths}: build one for each width")
        super().__init__([EmbeddingBagConfig(**vars(table), pooling=PoolingType.NONE) for table in tables], **choices)
        self._configs = list(tables)
        self._need_indices = need_indices

    @one_at_a_time
    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up the rows of a batch.

        Returns:
            A `JaggedTensor` by feature, and by `feature@table` where several tables serve one: rows fp32 `[n, dim]` on
            the device, in the order of the ids, with their lengths.

        Raises: as `CachedEmbeddingBagCollection`.
        """
        if isinstance(features, Proxy):
            traced: dict[str, JaggedTensor] = as_leaf(self, features)
            return traced
        pieces = self._look_up(features)
        self._returned(pieces)
        given = features.to_dict()
        rows = self._groups.in_table_order(
            [
                piece
                for group, found in zip(self._groups.groups, pieces, strict=True)
                for piece in found.split([given[name].values().numel() for name in group.features])
            ]
        )
        asked = [given[name] for table in self.spec.tables for name in table.feature_names]
        return {
            name: JaggedTensor(
                piece,
                lengths=ids.lengths().to(piece.device),
                weights=ids.values().to(piece.device) if self._need_indices else None,
            )
            for name, piece, ids in zip(self._groups.names, rows, asked, strict=True)
        }

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The tables, as torchrec's models ask for them."""
        return self._configs

    def embedding_names_by_table(self) -> list[list[str]]:
        """The names of outputs, table by table."""
        names: list[list[str]] = get_embedding_names_by_table(list(self.spec.tables))
        return names

    def embedding_dim(self) -> int:
        """The width of all tables."""
        width: int = self.spec.tables[0].embedding_dim
        return width

    def need_indices(self) -> bool:
        """Whether outputs have the ids in the place of weights."""
        return self._need_indices
