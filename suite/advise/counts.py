"""What steps count, from replays: distinct rows of batches, misses and moved rows of caches."""

from functools import cached_property

from suite.advise.case import Case
from suite.advise.costs import Counts
from suite.simulate.models import registry as models
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.trace import Trace, replayed
from systems.registry import Variant

_STEADY_BATCHES, _COUNTED_BATCHES = 50, 100


class Replays:
    """Replays the batches `span` of a trace, each cache once."""

    def __init__(self, trace: Trace, span: Span) -> None:
        self.trace = trace
        self.span = span
        self._found: dict[tuple[Variant, int], Counts] = {}

    @cached_property
    def uncached(self) -> Counts:
        """Of the counted batches, whatever is cached."""
        batches = replayed(self.trace, self.span.counted_from, self.span.stop)
        sizes = [(batch.ids.values.size, batch.unique[0].size) for batch in batches]
        lookups, distinct = zip(*sizes, strict=True)
        return Counts(lookups=sum(lookups) / len(sizes), distinct=sum(distinct) / len(sizes), largest=max(distinct))

    def counts(self, case: Case) -> Counts:
        """What a case counts per step.

        Raises:
            CannotReplay: the cache cannot run at that size.
        """
        model = model_of(case)
        if model is None:
            return self.uncached
        key = model, case.slots
        if key not in self._found:
            setting = Setting(trace=self.trace, span=self.span, slots=case.slots)
            self._found[key] = Counts.of(replay(models.build(model, setting)), largest=self.uncached.largest)
        return self._found[key]


def model_of(case: Case) -> Variant | None:
    """The simulated cache of a case; None: it has none, and moves no rows."""
    if case.caches:
        name = "freq_cache" if case.name == "freq_cache" else "fbgemm_uvm_caching"
        known = models.load(Variant(name)).variants
        return Variant(name, tuple((key, value) for key, value in case.parameters.items() if key in known))
    if case.shape.device == "cuda" and case.name in {"fbgemm_uvm", "torchrec_uvm"}:
        return Variant("uvm")
    return None


def steady_span(trace: Trace, *, batches: int | None = None) -> Span:
    """A span long enough for caches to be steady: a third of it, at least one batch, is replayed before counting."""
    stop = min(trace.length, _STEADY_BATCHES + _COUNTED_BATCHES if batches is None else batches)
    return Span(counted_from=min(stop // 3, max(0, stop - 1)), stop=stop)
