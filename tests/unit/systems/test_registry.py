"""The command line's words for systems."""

import re

import pytest

from systems import registry
from systems.freq_cache import FreqCache
from systems.registry import UnknownSystem, Variant, parse_systems, split_list


def test_lists_are_split_at_commas_outside_brackets() -> None:
    assert split_list(" a , b ,") == ["a", "b"]
    assert split_list("a,b[x=1,y=2],c[z=3]") == ["a", "b[x=1,y=2]", "c[z=3]"]
    assert split_list("") == split_list(",,") == []


def test_parameters_are_sorted_so_that_equal_variants_are_equal() -> None:
    one = Variant.parse("fbgemm_uvm_caching[policy=lfu, memory=managed]")
    assert one == Variant.parse("fbgemm_uvm_caching[memory=managed,policy=lfu]") == Variant.parse(str(one))
    assert str(one) == "fbgemm_uvm_caching[memory=managed,policy=lfu]"
    assert Variant.parse(" full_gpu ") == Variant.parse("full_gpu[]") == Variant("full_gpu")
    found = registry.resolved_parameters(one, registry.load(one))
    assert found == {"policy": "lfu", "memory": "managed", "prefetch": "off"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fbgemm_uvm_cachng", "did you mean .*fbgemm_uvm_caching"),
        ("ttrec", "did you mean tt_rec"),
        ("xyzzy", "known: .*" + ", ".join(registry.SYSTEMS)),
        *(
            (text, "name")
            for text in ("freq_cache[policy", "freq_cache]", "a b", "[policy=lfu]", "freq_cache[a=[b]]", "")
        ),
        ("freq_cache[policy]", "parameter=value"),
        ("freq_cache[policy=lfu,policy=static]", "twice"),
        # named, but not to be had
        ("systems.freq_cache.cache.planner:Planner", "not an EmbeddingSystem"),
        ("systems.freq_cache:NoSuchClass", "not an EmbeddingSystem"),
        ("fbgemm_uvm_caching[colour=red]", r"colour.*policy, memory, prefetch"),
        ("full_gpu[colour=red]", "none"),
        ("freq_cache[policy=fifo]", "static, lfu"),
        ("tt_rec[rank=7]", "'rank' is one of 16, 8, 32"),
    ],
)
def test_text_that_names_no_system_parameter_or_value_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UnknownSystem, match=complaint):
        registry.load(Variant.parse(text))


def test_all_is_every_system_with_two_more_rows_of_the_cache_and_on_cuda_its_tuned_rivals() -> None:
    plain, on_cuda = ([str(v) for v in parse_systems("all", every=e)] for e in (registry.ALL, registry.ALL_ON_CUDA))
    assert [name for name in plain if "[" not in name] == list(registry.SYSTEMS)
    assert [name for name in plain if "[" in name] == ["freq_cache[policy=lfu]", "freq_cache[look_ahead=4]"]
    assert [name for name in on_cuda if name in plain] == plain
    for name in ("torchrec_uvm_caching", "fbgemm_uvm_caching"):
        tuned = [f"{name}[{setting}]" for setting in ("memory=managed", "policy=lfu", "prefetch=on")]
        assert on_cuda[on_cuda.index(name) + 1 :][:3] == tuned
    assert not set(registry.APPROXIMATE) & set(plain)
    assert [str(one) for one in parse_systems("distinct", every=registry.ALL_ON_CUDA)] == on_cuda
    for name in (*on_cuda, *registry.GROUPS["approximate"], *registry.GROUPS["disk"]):
        registry.load(Variant.parse(name))  # a value that does not exist would end the run


def test_systems_are_parsed_in_order_each_once() -> None:
    found = parse_systems("full_gpu,all,freq_cache[policy=lfu],freq_cache[policy=lru],no_embeddings,full_gpu")
    names = [str(variant) for variant in found]
    assert names[:2] == ["full_gpu", "reference"]
    assert names[-2:] == ["freq_cache[policy=lru]", "no_embeddings"]
    assert len(names) == len(set(names)) == len(registry.ALL) + 2
    with pytest.raises(UnknownSystem, match="all"):
        parse_systems(" , ")


def test_class_of_ones_own_is_loaded_by_module_and_name() -> None:
    assert registry.load(Variant.parse("systems.freq_cache:FreqCache[policy=lfu]")) is FreqCache
    with pytest.raises(ImportError):
        registry.load(Variant.parse("no_such_package.module:System"))


@pytest.mark.parametrize("name", [*registry.SYSTEMS, *registry.CONTROLS])
def test_every_registered_name_loads_and_says_in_a_sentence_what_it_is_good_for(name: str) -> None:
    assert re.fullmatch(r"[A-Z][^.]{40,180}\.", registry.load(Variant.parse(name)).about)
