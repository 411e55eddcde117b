"""Training of embedding tables written out again, in plain torch: dense autograd, float64, no library of tables.

Nothing here is shared with the systems under test but torchrec's words for a table and a batch.
"""

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.types import DataType

from systems.contract import EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer


class PlainTraining:
    """Tables as float64 matrices, every row of which is updated at every step, by a zero gradient where it was idle.

    Rows of an fp16 table are rounded to fp16 at the start and after every update.
    """

    def __init__(self, tables: tuple[EmbeddingBagConfig, ...], optimizer: SparseOptimizer, *, seed: int = 1) -> None:
        self.tables = tables
        self.optimizer = optimizer
        start = torch.Generator().manual_seed(seed)
        self.weights = {
            t.name: torch.randn(t.num_embeddings, t.embedding_dim, generator=start).double() for t in tables
        }
        names = {OptimizerKind.SGD: (), OptimizerKind.ADAM: ("exp_avg", "exp_avg_sq")}.get(optimizer.kind, ("sum",))
        self.states = {
            table: {name: torch.zeros_like(weight) for name in names} for table, weight in self.weights.items()
        }
        if optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD:
            self.states = {table: {"sum": state["sum"][:, 0].clone()} for table, state in self.states.items()}
        self.steps = 0
        self._round()

    def pooled(self, batch: KeyedJaggedTensor) -> Tensor:
        """`[batch, sum of dims]`, features in table order, differentiable with respect to `weights`."""
        parts = batch.to_dict()
        columns = []
        for table in self.tables:
            for feature in table.feature_names:
                lengths = parts[feature].lengths().long()
                bag_of_id = torch.arange(lengths.numel()).repeat_interleave(lengths)
                rows = self.weights[table.name][parts[feature].values().long()]
                if parts[feature].weights_or_none() is not None:
                    rows = rows * parts[feature].weights().detach().double()[:, None]
                sums = torch.zeros(lengths.numel(), table.embedding_dim, dtype=torch.float64)
                sums = sums.index_add(0, bag_of_id, rows)
                if table.pooling is PoolingType.MEAN:
                    sums = sums / lengths.clamp(min=1).unsqueeze(1)
                columns.append(sums)
        return torch.cat(columns, dim=1)

    def step(self, batch: KeyedJaggedTensor, gradient: Tensor) -> Tensor:
        """Train on one batch whose loss is `(pooled * gradient).sum()`. Returns what was pooled before the update."""
        for weight in self.weights.values():
            weight.requires_grad_()
        pooled = self.pooled(batch)
        gradients = torch.autograd.grad((pooled * gradient.double()).sum(), list(self.weights.values()))
        self.weights = {name: weight.detach() for name, weight in self.weights.items()}
        self.steps += 1
        parts = batch.to_dict()
        for table, dense in zip(self.tables, gradients, strict=True):
            ids = torch.cat([parts[feature].values().long() for feature in table.feature_names]).unique()
            self._update(table.name, dense, ids)
        self._round()
        return pooled.detach()

    def _update(self, name: str, g: Tensor, touched: Tensor) -> None:
        weight, state, lr, eps = self.weights[name], self.states[name], self.optimizer.lr, self.optimizer.eps
        if self.optimizer.kind is OptimizerKind.SGD:
            weight -= lr * g
        elif self.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD:
            state["sum"] += (g * g).sum(dim=1) / g.shape[1]
            weight -= lr * g / (state["sum"].sqrt() + eps)[:, None]
        elif self.optimizer.kind is OptimizerKind.ADAGRAD:
            state["sum"] += g * g
            weight -= lr * g / (state["sum"].sqrt() + eps)
        else:  # lazy Adam: rows that the batch does not name keep their moments, as in torch.optim.SparseAdam
            b1, b2 = self.optimizer.beta1, self.optimizer.beta2
            first, second = state["exp_avg"], state["exp_avg_sq"]
            first[touched] = b1 * first[touched] + (1 - b1) * g[touched]
            second[touched] = b2 * second[touched] + (1 - b2) * g[touched] ** 2
            spread = (second[touched] / (1 - b2**self.steps)).sqrt()
            weight[touched] -= lr * first[touched] / (1 - b1**self.steps) / (spread + eps)

    def _round(self) -> None:
        for table in self.tables:
            if table.data_type is DataType.FP16:
                self.weights[table.name] = self.weights[table.name].half().double()

    def start(self, system: EmbeddingSystem) -> None:
        """Give a system the rows that these tables have now."""
        for name, weight in self.weights.items():
            system.load_rows(name, 0, Rows(weight.float(), {k: v.float() for k, v in self.states[name].items()}))
