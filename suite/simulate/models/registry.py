"""The simulated ways of caching by name. Adding one: a class, and a line below."""

import importlib

from suite.records.command_line import BadOption
from suite.simulate.models.model import CacheModel, Setting
from systems.registry import UnknownSystem, Variant, check_parameters, read_variant, split_list

MODELS: dict[str, str] = {
    "freq_cache": "suite.simulate.models.ours:FreqCacheModel",
    "lru": "suite.simulate.models.lru:LruModel",
    "colossalai": "suite.simulate.models.colossalai:ColossalAIModel",
    "cdlrm": "suite.simulate.models.cdlrm:CDLRMModel",
    "fae": "suite.simulate.models.fae:HotSetModel",
    "fbgemm_uvm_caching": "suite.simulate.models.fbgemm:FbgemmCacheModel",
    "uvm": "suite.simulate.models.fbgemm:UncachedModel",
    "belady": "suite.simulate.models.belady:BeladyModel",
    "compulsory": "suite.simulate.models.belady:CompulsoryModel",
}
"""`module:class` by name, in the order of tables; the last two are bounds."""

BOUNDS = ("belady", "compulsory")
"""Replayed whatever is named: the least that any policy could have missed, and rows that nobody could have had."""

ALL = (
    "freq_cache[policy=static]",
    "freq_cache[policy=lfu]",
    "freq_cache[policy=lru]",
    *(f"freq_cache[policy={policy},look_ahead={n}]" for n in (16, 64) for policy in ("static", "lfu", "lru")),
    "lru",
    "colossalai[policy=dataset]",
    "colossalai[policy=lfu]",
    "cdlrm",
    "fae",
    "fbgemm_uvm_caching[policy=lru]",
    "fbgemm_uvm_caching[policy=lfu]",
    "uvm",
)
"""Policies that `all` stands for, bounds aside."""


def parse_policies(text: str) -> list[Variant]:
    """The variants that `--policies` names, in order, each once, and the bounds behind them.

    A `module:class` of one's own is taken as well.

    Raises:
        BadOption: a name, a parameter or a value is unknown, and near names are given; or a class cannot be imported.
    """
    named = [part for entry in split_list(text) for part in (ALL if entry == "all" else (entry,))]
    if not named:
        raise BadOption(f"--policies: none named: give all, or some of {', '.join(MODELS)}")
    variants: dict[tuple[object, ...], Variant] = {}
    try:
        for entry in (*named, *BOUNDS):
            variant = read_variant(entry, known=list(MODELS), what="policy")
            variants.setdefault((variant.name, *sorted(parameters_of(variant).items())), variant)
    except UnknownSystem as error:
        raise BadOption(f"--policies: {error}") from None
    return list(variants.values())


def load(variant: Variant) -> type[CacheModel]:
    """Import a variant's class.

    Raises:
        UnknownSystem: there is no such class, or it has no such parameter or value.
    """
    target = MODELS.get(variant.name, variant.name)
    module_name, _, class_name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise UnknownSystem(f"cannot import {variant.name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, CacheModel)):
        raise UnknownSystem(f"{target} is not a CacheModel")
    check_parameters(variant, found.variants)
    return found


def parameters_of(variant: Variant) -> dict[str, str]:
    """All parameters of a variant, defaults filled in. Raises what `load` does."""
    return {**{key: values[0] for key, values in load(variant).variants.items()}, **dict(variant.parameters)}


def build(variant: Variant, setting: Setting) -> CacheModel:
    """A model with all its parameters.

    Raises:
        UnknownSystem: as `load`.
        CannotReplay: the policy cannot run in this setting.
    """
    return load(variant)(setting, parameters_of(variant))
