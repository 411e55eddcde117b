"""Bytes and flops of the model around the tables."""

from itertools import accumulate, pairwise
from typing import Literal, Self

from pydantic import Field

from suite.records.measured import Model
from suite.records.record import Cell
from workloads.batch import Workload


class Shape(Model):
    """What model and activations depend on."""

    tables: int = Field(ge=1)
    embedding_dim: int
    batch_size: int = Field(ge=1)
    dense_columns: int = Field(ge=1)
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    optimizer: str
    device: Literal["cpu", "cuda"]

    @classmethod
    def of(cls, cell: Cell, workload: Workload) -> Self:
        """The shape of a cell, whose workload is `workload`."""
        return cls(
            tables=len(workload.tables),
            embedding_dim=cell.embedding_dim,
            batch_size=cell.batch_size,
            dense_columns=workload.dense_columns,
            bottom_mlp=cell.bottom_mlp,
            top_mlp=cell.top_mlp,
            optimizer=cell.optimizer,
            device=cell.device,
        )

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of every linear layer, the bottom MLP's first."""
        features = self.tables + 1
        interacted = self.embedding_dim + features * (features - 1) // 2
        bottom = (self.dense_columns, *self.bottom_mlp, self.embedding_dim)
        return (*pairwise(bottom), *pairwise((interacted, *self.top_mlp)))

    @property
    def dense_flops(self) -> float:
        """Multiplications and additions of a step in matrix products: forward, and twice that in backward.

        Nobody wants the gradient of the dense columns, so the first layer has one product less.
        """
        linear = sum(inputs * outputs for inputs, outputs in self.layers)
        interaction = (self.tables + 1) ** 2 * self.embedding_dim
        first_inputs, first_outputs = self.layers[0]
        return 2.0 * self.batch_size * (3 * (linear + interaction) - first_inputs * first_outputs)

    @property
    def dense_parameters(self) -> int:
        """Weights and biases of both MLPs."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def activation_values(self) -> int:
        """Values that forward leaves for backward: pooled rows, their products, the output of every layer."""
        features = self.tables + 1
        return self.batch_size * (features * self.embedding_dim + features**2 + sum(out for _, out in self.layers))

    @property
    def peak_values(self) -> int:
        """Values of activations and gradients on the device when a step has most of them.

        Forward has most in the top MLP: dense and pooled vectors joined, the pooled ones by themselves, which the model
        holds until it returns, and what layers put out, of the layer at work before and after its ReLU. Backward has
        most behind the products of vectors: the joined ones, the gradient of each factor, that of the products, and
        the gradients of the parameters.
        """
        vectors, dim = self.tables + 1, self.embedding_dim
        joined, interacted = vectors * dim, dim + vectors * (vectors - 1) // 2
        throughout = sum(self.bottom_mlp) + dim + interacted
        top = max(done + out for done, out in zip(accumulate(self.top_mlp), self.top_mlp, strict=True))
        forward = throughout + joined + self.tables * dim + top
        backward = throughout + 3 * joined + vectors * vectors
        return max(self.batch_size * forward, self.batch_size * backward + self.dense_parameters)

    @property
    def model_bytes(self) -> int:
        """Device memory of the dense part at its peak: parameters, optimizer state, activations and gradients."""
        states = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 1, "adam": 2}[self.optimizer]
        return 4 * ((1 + states) * self.dense_parameters + self.peak_values)
