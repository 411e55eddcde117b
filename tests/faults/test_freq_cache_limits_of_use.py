"""The cache where a caller does what it cannot follow: each is a right answer or a sentence, never a wrong row."""

import copy
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.optim import RowWiseAdagrad

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from tests.contract.scenes import assert_same, snapshot
from tests.faults.freq_cache_training import (
    LOOK_AHEAD,
    Plain,
    batch,
    built,
    gradient,
    learn,
    plain_after,
    started,
    train,
)

ROOT = Path(__file__).parents[2]

# Graphs


@LOOK_AHEAD
@pytest.mark.parametrize("since", ["batch", "save", "flush", "read"])
def test_backward_is_refused_once_rows_may_lie_elsewhere(tmp_path: Path, look_ahead: int, since: str) -> None:
    """`batch`: through a graph that was retained. Else after rows were saved, as after Ctrl-C in the dense model."""
    collection = started(look_ahead=look_ahead)
    pooled = collection(batch(0)).values()
    if since == "batch":
        (pooled * gradient(0, pooled)).sum().backward(retain_graph=True)
        learn(collection(batch(1)).values(), 1)
    elif since == "save":
        collection.save(tmp_path)
    elif since == "flush":
        collection.flush()
    else:
        collection.read_rows("users", torch.arange(4))
    with pytest.raises(RuntimeError, match="backward came too late"):
        learn(pooled, 0)
    assert_same(snapshot(collection), plain_after(2 if since == "batch" else 0))


def test_graph_may_be_used_again_until_rows_move() -> None:
    collection, plain = started(), Plain()
    pooled = collection(batch(0)).values()
    for _ in range(2):
        (pooled * gradient(0, pooled)).sum().backward(retain_graph=True)
        plain.train(range(1))
    assert_same(snapshot(collection), plain.rows())


def test_of_two_lookups_for_one_backward_the_older_is_refused_once_a_third_came() -> None:
    collection = started(lookups_per_backward=2, cache_ratio=0.3)
    first, second = collection(batch(0)).values(), collection(batch(1)).values()
    (first.sum() * 0 + (second * gradient(1, second)).sum()).backward(retain_graph=True)
    learn(collection(batch(2)).values(), 2)
    with pytest.raises(RuntimeError, match="backward came too late"):
        first.sum().backward()


# Threads and processes


def weighted(
    lookups: int, dim: int = 4, **optimizer: Any
) -> tuple[CachedEmbeddingBagCollection, torch.nn.EmbeddingBag]:
    """A collection of one table whose ids have weights, and the same rows in plain torch."""
    table = EmbeddingBagConfig(name="t", feature_names=["f"], num_embeddings=10, embedding_dim=dim)
    options = {"optimizer": torch.optim.SGD, "optimizer_kwargs": {"lr": 1.0}, **optimizer}
    ours = CachedEmbeddingBagCollection(
        [table], cache_ratio=1.0, is_weighted=True, lookups_per_backward=lookups, **options
    )
    (rows,) = [value for name, value in ours.state_dict().items() if name.endswith("t.weight")]
    return ours, torch.nn.EmbeddingBag(10, dim, mode="sum", include_last_offset=True, _weight=rows.clone())


def ids_with(weights: Tensor) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["f"], torch.tensor([1, 2]), weights, lengths=torch.tensor([2]))


@pytest.mark.parametrize("both", [False, True])
def test_weights_with_gradients_get_a_backward_for_every_lookup(both: bool) -> None:
    ours, plain = weighted(lookups=2)
    first = torch.tensor([1.0, 2.0], requires_grad=True)
    pooled = ours(ids_with(first)).values()
    second = torch.tensor([3.0, 4.0], requires_grad=both)
    with pytest.raises(RuntimeError, match="need a backward for every lookup"):
        ours(ids_with(second))
    pooled.sum().backward()
    expected = torch.tensor([1.0, 2.0], requires_grad=True)
    plain(torch.tensor([1, 2]), torch.tensor([0, 2]), per_sample_weights=expected).sum().backward()
    assert torch.equal(first.grad, expected.grad)
    ours(ids_with(second)).values().sum().backward()


def test_second_backward_is_refused_before_it_changes_rows() -> None:
    ours, _ = weighted(lookups=1)
    pooled = ours(ids_with(torch.tensor([1.0, 2.0], requires_grad=True))).values()
    pooled.sum().backward(retain_graph=True)
    rows = ours.state_dict()
    with pytest.raises(RuntimeError, match="backward came a second time"):
        pooled.sum().backward()
    assert all(torch.equal(value, rows[name]) for name, value in ours.state_dict().items())
    ours(ids_with(torch.ones(2))).values().sum().backward()


@pytest.mark.parametrize("evaluates", [False, True])
def test_lookup_without_gradients_takes_any_weights_that_would_get_some(evaluates: bool) -> None:
    ours, plain = weighted(lookups=1, dim=5, optimizer=RowWiseAdagrad)
    weights = torch.ones(2, 2)[:, 0].requires_grad_()
    ours.train(not evaluates)
    with torch.no_grad():
        found = ours(ids_with(weights)).values()
        expected = plain(torch.tensor([1, 2]), torch.tensor([0, 2]), per_sample_weights=weights)
    torch.testing.assert_close(found, expected)


def test_thread_that_comes_while_another_is_inside_is_refused() -> None:
    collection, inside, leave = started(), threading.Event(), threading.Event()
    read = collection.caches[0].tier.read

    def slow(rows: Tensor, out: Tensor) -> None:
        inside.set()
        assert leave.wait(60)
        read(rows, out)

    collection.caches[0].tier.read = slow
    other = threading.Thread(target=lambda: learn(collection(batch(0)).values(), 0))
    other.start()
    assert inside.wait(60)
    for call in (
        lambda: collection(batch(1)),
        collection.flush,
        lambda: collection.read_rows("users", torch.arange(3)),
        collection.close,
    ):
        with pytest.raises(RuntimeError, match="another thread is using the collection"):
            call()
    leave.set()
    other.join()
    learn(collection(batch(1)).values(), 1)  # nobody is inside: threads may take turns
    assert_same(snapshot(collection), plain_after(2))


def test_lookup_while_another_threads_backward_runs_is_refused() -> None:
    collection, refused = started(), []
    pooled = collection(batch(0)).values()

    def look_up_meanwhile(_: Tensor) -> None:
        def look_up() -> None:
            with pytest.raises(RuntimeError, match="still waits for its backward") as caught:
                collection(batch(1))
            refused.append(caught)

        other = threading.Thread(target=look_up)
        other.start()
        other.join()

    pooled.register_hook(look_up_meanwhile)  # the gradient is there, and the rows are not updated
    learn(pooled, 0)
    learn(collection(batch(1)).values(), 1)
    assert len(refused) == 1
    assert_same(snapshot(collection), plain_after(2))


def test_forked_process_is_refused_and_leaves_everything_to_its_parent(tmp_path: Path) -> None:
    code = f"""
        import os, torch
        from tests.faults.freq_cache_training import batch, learn, plain_after, started
        from tests.contract.scenes import assert_same, snapshot
        torch.set_num_threads(1)
        collection = started(look_ahead=2, directory={str(tmp_path / "rows")!r})
        learn(collection(batch(0)).values(), 0)
        child = os.fork()
        if not child:
            said = []
            for call in (lambda: collection(batch(1)), collection.flush, collection.memory):
                try:
                    call()
                except RuntimeError as error:
                    said.append("built in another process" in str(error))
            collection.close()
            os._exit(0 if said == [True] * 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        learn(collection(batch(1)).values(), 1)
        assert_same(snapshot(collection), plain_after(2))
        collection.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize("copies", [copy.deepcopy, pickle.dumps])
def test_copies_of_a_collection_are_refused(copies: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled: save"):
        copies(started())


def test_inference_mode_without_eval_leaves_a_collection_that_trains() -> None:
    with torch.inference_mode():
        collection = started(cache_ratio=0.04)
        for step in (0, 1):
            collection(batch(step))
    for step in range(3):
        learn(collection(batch(step)).values(), step)
    assert_same(snapshot(collection), plain_after(3))


# Batches and hyper-parameters


def test_batches_out_of_announced_order_are_refused_and_taken_in_order_afterwards() -> None:
    collection = started(look_ahead=2)
    batches = [batch(step) for step in range(3)]
    for features in batches:
        collection.prefetch(features)
    with pytest.raises(RuntimeError, match="in the order in which they were announced"):
        collection(batches[1])
    for step, features in enumerate(batches):
        learn(collection(features).values(), step)
    assert_same(snapshot(collection), plain_after(3))


def test_batch_announced_as_not_to_be_trained_is_trained_once_announced_again() -> None:
    collection = started(look_ahead=2)
    features = batch(0)
    with torch.no_grad():
        collection.prefetch(features)
    with pytest.raises(RuntimeError, match=r"announced under torch.no_grad.* announce it again"):
        collection(features)
    collection.prefetch(features)
    learn(collection(features).values(), 0)
    train(collection, range(1, 4))
    assert_same(snapshot(collection), plain_after(4))


def test_announcing_without_look_ahead_is_refused() -> None:
    with pytest.raises(RuntimeError, match="look_ahead=0: give look_ahead"):
        built().prefetch(batch(0))


def test_commit_of_rows_in_host_memory_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"use save\(\), or build with a directory"):
        built().commit()


@LOOK_AHEAD
@pytest.mark.parametrize("outside", [False, True])
def test_ids_may_be_overwritten_once_they_were_looked_up(look_ahead: int, outside: bool) -> None:
    """Also where their rows still wait for a backward, with those of the next lookup."""
    collection, plain = started(lookups_per_backward=2, cache_ratio=0.15, look_ahead=look_ahead), Plain()
    for step in range(0, 8, 2):
        reused = batch(step)
        first = collection(reused).values()
        reused.values().copy_(batch(step + 50).values()) if not outside else reused.values().fill_(10**9)
        second = collection(batch(step + 1)).values()
        ((first * gradient(step, first)).sum() + (second * gradient(step + 1, second)).sum()).backward()
        del first, second
    plain.train(range(8))
    assert_same(snapshot(collection), plain.rows())


def test_offsets_that_were_checked_are_those_that_kernels_read() -> None:
    """In the type in which kernels take them too: overwritten later, they would lead beyond the ids."""
    collection, plain = started(look_ahead=2), Plain()
    for step in range(5):
        made = batch(step)
        lengths, offsets = made.lengths().int(), made.offsets().int()
        features = KeyedJaggedTensor(made.keys(), made.values(), lengths=lengths, offsets=offsets)
        collection.prefetch(features)
        collection._pipeline._planning.submit(lambda: None).wait()
        offsets.fill_(1)
        learn(collection(features).values(), step)
    plain.train(range(5))
    assert_same(snapshot(collection), plain.rows())


@pytest.mark.parametrize("announced", [1, 2])
def test_ids_overwritten_after_their_announcement_are_refused_and_served_at_the_next_call(announced: int) -> None:
    collection, plain = started(look_ahead=2), Plain()
    batches = [batch(step) for step in range(3)]
    for features in batches:
        collection.prefetch(features)
    batches[announced].values().copy_(batch(7).values())
    for step, features in enumerate(batches):
        if step == announced:
            with pytest.raises(RuntimeError, match="ids of the batch announced next were overwritten"):
                collection(features)
        pooled = collection(features).values()
        learn(pooled, step)
        plain.step(features, gradient(step, pooled))
        del pooled
    assert_same(snapshot(collection), plain.rows())


@pytest.mark.parametrize("name", ["lr", "eps", "beta1"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1e39])
def test_hyper_parameters_that_would_spoil_rows_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} of .* would spoil the rows"):
        SparseOptimizer(kind=OptimizerKind.ADAM, **{"lr": 0.1, name: value})
    collection = started()
    group = collection.fused_optimizer.param_groups[0]
    usual, group[name] = group[name], value
    with pytest.raises(ValueError, match=f"{name} of .* would spoil the rows"):
        collection(batch(0))
    group[name] = usual
    learn(collection(batch(0)).values(), 0)
    assert_same(snapshot(collection), plain_after(1))
