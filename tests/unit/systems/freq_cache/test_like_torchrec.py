"""What torchrec's own tests state of its collections holds for the cached ones."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagConfig, EmbeddingConfig, KeyedJaggedTensor
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection, CachedEmbeddingCollection
from systems.freq_cache.arguments import sparse_optimizer
from systems.freq_cache.batches import parts_on_host
from systems.freq_cache.cache.staging import D2HCopy
from tests.contract.scenes import batch_of, snapshot

SGD = {"optimizer": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.5}, "cache_ratio": 0.5}


def bags(name: str, dim: int, *features: str, rows: int = 10) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=list(features))


def test_rows_are_real_where_the_model_around_them_is_built_on_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(CachedEmbeddingBagCollection([bags("t", 3, "f")], **SGD), nn.Linear(3, 1))
    ours = model[0]
    assert ours.device == torch.device("cpu")
    assert ours(batch_of({"f": [[1], [2]]})).values().abs().sum() > 0
    with pytest.raises(ValueError, match="give the device that looks them up"):
        CachedEmbeddingBagCollection([bags("t", 3, "f")], **SGD, device="meta")


@pytest.mark.parametrize("move", [lambda model: model.to("meta"), lambda model: model.half()])
def test_rows_cannot_be_moved_with_a_model(move: Any) -> None:
    model = nn.Sequential(CachedEmbeddingBagCollection([bags("t", 3, "f")], **SGD))
    with pytest.raises(RuntimeError, match="build the collection with the device and tables that you want"):
        move(model)
    assert model.to("cpu") is model


def test_bags_that_differ_in_number_without_saying_whose_they_are_are_refused_and_nothing_is_touched() -> None:
    ours = CachedEmbeddingBagCollection([bags("t1", 3, "f1", "f2")], **SGD, look_ahead=1)
    features = KeyedJaggedTensor(
        ["f1", "f2"], torch.arange(3), lengths=torch.ones(3, dtype=torch.int64), stride_per_key_per_rank=[[2], [1]]
    )
    for call in (ours.prefetch, ours):
        with pytest.raises(ValueError, match="no inverse_indices"):
            call(features)
    assert ours.counters().steps == 0


def test_sequences_of_two_widths_are_refused() -> None:
    tables = [EmbeddingConfig(name=f"t{dim}", embedding_dim=dim, num_embeddings=9) for dim in (3, 4)]
    with pytest.raises(ValueError, match="build one for each width"):
        CachedEmbeddingCollection(tables, **SGD)


def test_weights_of_sequences_are_refused() -> None:
    table = EmbeddingConfig(name="clicks", embedding_dim=4, num_embeddings=9)
    with pytest.raises(ValueError, match=r"weights go with SUM pooling only .* give no weights"):
        CachedEmbeddingCollection([table], is_weighted=True, **SGD)


# Optimizers given torch's way


@pytest.mark.parametrize(
    ("optimizer", "arguments", "wanted"),
    [
        (torch.optim.SGD, {"lr": 0.5}, SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)),
        (torch.optim.Adagrad, {}, SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.01, eps=1e-10)),
        (
            torch.optim.AdamW,
            {"betas": (0.8, 0.9)},
            SparseOptimizer(kind=OptimizerKind.ADAM, lr=1e-3, beta1=0.8, beta2=0.9, weight_decay=0.01),
        ),
        (
            RowWiseAdagrad,
            {"weight_decay": 0.1, "max_gradient": 2.0},
            SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.01, eps=1e-10, weight_decay=0.1, max_gradient=2.0),
        ),
        (
            torch.optim.SGD,
            {"lr": 0.5, "gradient_clipping": True},
            SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5, max_gradient=1.0),
        ),
    ],
)
def test_optimizer_of_torch_is_the_fused_one_with_torchs_defaults(
    optimizer: type[torch.optim.Optimizer], arguments: dict[str, Any], wanted: SparseOptimizer
) -> None:
    assert sparse_optimizer(optimizer, arguments) == wanted


@pytest.mark.parametrize(
    ("optimizer", "arguments", "message"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, "has no momentum: leave it out"),
        (torch.optim.SGD, {"weight_decay": 0.1}, "use RowWiseAdagrad or AdamW"),
        (torch.optim.Adam, {"weight_decay": 0.1}, "use RowWiseAdagrad or AdamW"),
        (torch.optim.Adam, {"amsgrad": True}, "has no amsgrad"),
        (torch.optim.Adagrad, {"lr_decay": 0.1}, "has no lr_decay"),
        (torch.optim.RMSprop, {}, "RMSprop is not fused into backward: use Adagrad, Adam, AdamW, RowWiseAdagrad, SGD"),
        (torch.optim.SGD, {"lr": -1.0}, "Invalid learning rate"),
    ],
)
def test_what_is_not_fused_is_refused_with_a_remedy(
    optimizer: type[torch.optim.Optimizer], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sparse_optimizer(optimizer, arguments)


@pytest.mark.parametrize("dim", [3, 4])
def test_gradients_are_cut_whatever_the_width(dim: int) -> None:
    arguments = {"lr": 0.1, "eps": 1e-6}
    ours = CachedEmbeddingBagCollection(
        [bags("t", dim, "f")],
        optimizer=RowWiseAdagrad,
        optimizer_kwargs={**arguments, "max_gradient": 0.5},
        cache_ratio=1,
    )
    row = nn.Parameter(ours.state_dict()["embedding_bags.t.weight"][[3]])
    plain = RowWiseAdagrad([row], **arguments)
    for step in range(3):
        gradient = torch.tensor([[4.0, 0.1, -0.2, -3.0][:dim]]) * (step + 1)
        (ours(batch_of({"f": [[3]]})).values() * gradient).sum().backward()
        row.grad = gradient.clamp(-0.5, 0.5)
        plain.step()
    after = snapshot(ours)
    torch.testing.assert_close(after["t.weight"][[3]], row.detach())
    torch.testing.assert_close(after["t.sum"][3], plain.state[row]["sum"].squeeze())
    assert torch.equal(after["t.sum"] > 0, torch.arange(10) == 3)


def test_tables_train_at_rates_of_their_own_and_schedules_scale_each() -> None:
    tables = [bags("slow", 4, "f"), bags("fast", 4, "g"), bags("other", 4, "h")]
    ours = CachedEmbeddingBagCollection(tables, **SGD, table_kwargs={"slow": {"lr": 0.125}, "other": {"lr": 0.125}})
    schedule = torch.optim.lr_scheduler.StepLR(ours.fused_optimizer, step_size=1, gamma=0.5)
    before = snapshot(ours)
    features = batch_of({name: [[0]] for name in "fgh"})
    for _ in range(2):
        ours(features).values().sum().backward()
        schedule.step()
    moved = {name: (before[name] - value)[0, 0].item() for name, value in snapshot(ours).items()}
    assert moved == pytest.approx({"slow.weight": 0.1875, "fast.weight": 0.75, "other.weight": 0.1875})
    with pytest.raises(ValueError, match=r"set them in fused_optimizer\.param_groups"):
        ours.set_learning_rate(1.0)


def test_rates_of_single_tables_are_saved_and_asked_for_when_they_are_missing(tmp_path: Any) -> None:
    tables = [bags("slow", 4, "f"), bags("fast", 4, "g")]
    ours = CachedEmbeddingBagCollection(tables, **SGD, table_kwargs={"slow": {"lr": 0.125}})
    ours.fused_optimizer.param_groups[1]["lr"] = 0.0625
    ours.save(tmp_path)
    again = CachedEmbeddingBagCollection(tables, **SGD, table_kwargs={"slow": {"lr": 0.125}})
    again.load(tmp_path)
    assert [group["lr"] for group in again.fused_optimizer.param_groups] == [0.5, 0.0625]
    with pytest.raises(ValueError, match="table_kwargs that it was saved with"):
        CachedEmbeddingBagCollection(tables, **SGD).load(tmp_path)


# Rows and features elsewhere


class Fetched:
    """In the place of a transfer: what lies on a device that is not there."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = list(tensors)

    def to_host(self, _: torch.Tensor) -> D2HCopy:
        return D2HCopy(self._tensors.pop(0), None)


def test_ids_on_a_device_are_copied_back_and_weights_stay() -> None:
    ours = CachedEmbeddingBagCollection([bags("t", 3, "f", "g")], **SGD, is_weighted=True)
    ids, lengths, weights = torch.tensor([5, 6, 7]), torch.tensor([1, 2]), torch.ones(3)
    on_device = KeyedJaggedTensor(["g", "f"], ids.to("meta"), weights, lengths=lengths.to("meta"), stride=1)
    (part,) = parts_on_host(ours._groups, Fetched(ids, lengths), on_device)
    assert part.keys() == ["f", "g"]
    assert part.values().tolist() == [6, 7, 5]
    assert math.isclose(part.weights().sum().item(), 3.0)
