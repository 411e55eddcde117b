"""With `prefetch=on` a batch is read behind its copy alone, and the cache filled behind the last update of rows.

Streams are stand-ins that know what they are ordered behind; the filling of a cache, which a CPU lacks, is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from systems.fbgemm.tbe import TBE
from systems.fbgemm.uvm_cache import UVMCaching
from tests.contract.scenes import UNIFORM, assert_same, ragged, snapshot, spec_of, train

VARIANTS = ["fbgemm_uvm_caching", "torchrec_uvm_caching"]


class Event:
    def __init__(self, behind: set[str]) -> None:
        self.behind = frozenset(behind)


class Stream:
    def __init__(self, *behind: str) -> None:
        self.behind = set(behind)

    def wait_event(self, event: Event) -> None:
        self.behind |= event.behind

    def wait_stream(self, other: "Stream") -> None:
        self.behind |= other.behind

    def record_event(self) -> Event:
        return Event(self.behind)


class Streams:
    """Those of one system: the current one, and for which ones memory was recorded."""

    def __init__(self) -> None:
        self.compute, self.reading, self.side = Stream("update of the step before"), Stream(), Stream()
        self.current = self.compute
        self.recorded: set[Stream] = set()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()

    def fill(*_: object, forward_stream: Stream, **__: object) -> None:
        assert made.current is made.side
        assert forward_stream is made.compute
        assert made.side.behind >= {"update of the step before", "reading"}
        made.side.behind.add("filling")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: made.recorded.add(stream))
    monkeypatch.setattr(TBE, "prefetch", fill)
    monkeypatch.setattr(ShardedEmbeddingBagCollection, "prefetch", fill)
    return made


def prefetching(name: str, streams: Streams) -> UVMCaching:
    system, spec = spec_of(f"{name}[policy=lru,prefetch=on]", device=torch.device("cpu"), tables=UNIFORM)
    built = cast(Any, system(spec))
    built._reading, built._side = streams.reading, streams.side
    read = built._read

    def noted(features: object) -> object:
        assert streams.current is streams.reading
        found = read(features)
        streams.reading.behind.add("reading")
        return found

    built._read = noted
    return cast(UVMCaching, built)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("copied", [True, False])
def test_batch_is_read_behind_its_copy_and_rows_are_filled_in_behind_the_last_update(
    name: str, copied: bool, streams: Streams
) -> None:
    system = prefetching(name, streams)
    features = ragged(0, UNIFORM)
    if copied:
        system.prefetch_behind(features, cast(torch.cuda.Event, Event({"copy"})))
    else:
        system.prefetch(features)
    assert streams.reading.behind == {"reading", "copy" if copied else "update of the step before"}
    assert streams.compute.behind == {"update of the step before"}
    assert streams.recorded >= {streams.side, streams.compute}
    system(features)
    assert streams.compute.behind >= {"reading", "filling"}


@pytest.mark.parametrize("name", VARIANTS)
def test_training_on_announced_batches_is_training(name: str, streams: Streams) -> None:
    ours = prefetching(name, streams)
    system, spec = spec_of(f"{name}[policy=lru,prefetch=off]", device=torch.device("cpu"), tables=UNIFORM)
    plain = system(spec)
    plain.load_state_dict(ours.state_dict())
    for step in range(4):
        features = ragged(step, UNIFORM)
        assert torch.equal(train(ours, features, step), train(plain, features, step))
    assert_same(snapshot(ours), snapshot(plain))
