"""The command line's words for systems."""

import re

import pytest

from systems import groups, registry
from systems.freq_cache import FreqCache
from systems.groups import parse_systems
from systems.registry import UnknownSystem, Variant, split_list


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        (" a , b ,", ["a", "b"]),
        ("a[x=1,y=2],b", ["a[x=1,y=2]", "b"]),
        ("a,b[x=1,y=2],c[z=3]", ["a", "b[x=1,y=2]", "c[z=3]"]),
        ("", []),
        (",,", []),
    ],
)
def test_lists_are_split_at_commas_outside_brackets(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


def test_name_alone_is_a_variant_without_parameters() -> None:
    assert Variant.parse(" full_gpu ") == Variant("full_gpu")
    assert Variant.parse("freq_cache[]") == Variant("freq_cache")


def test_parameters_are_sorted_so_that_equal_variants_are_equal() -> None:
    one = Variant.parse("fbgemm_uvm_caching[policy=lfu, memory=managed]")
    other = Variant.parse("fbgemm_uvm_caching[memory=managed,policy=lfu]")
    assert one == other
    assert str(one) == "fbgemm_uvm_caching[memory=managed,policy=lfu]"
    assert Variant.parse(str(one)) == one


def test_near_names_are_offered() -> None:
    with pytest.raises(UnknownSystem, match=r"did you mean .*fbgemm_uvm_caching"):
        Variant.parse("fbgemm_uvm_cachng")


def test_far_names_get_the_whole_list() -> None:
    with pytest.raises(UnknownSystem) as refusal:
        Variant.parse("xyzzy")
    for name in [*registry.SYSTEMS, *registry.CONTROLS]:
        assert name in str(refusal.value)


@pytest.mark.parametrize("text", ["freq_cache[policy", "freq_cache]", "a b", "[policy=lfu]", "freq_cache[a=[b]]", ""])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(UnknownSystem, match="name"):
        Variant.parse(text)


def test_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(UnknownSystem, match="parameter=value"):
        Variant.parse("freq_cache[policy]")


def test_parameter_given_twice_is_refused() -> None:
    with pytest.raises(UnknownSystem, match="twice"):
        Variant.parse("freq_cache[policy=lfu,policy=static]")


def test_all_stands_for_every_system_by_default_and_two_more_rows_of_the_cache() -> None:
    names = [str(variant) for variant in parse_systems("all")]
    assert [name for name in names if "[" not in name] == list(registry.SYSTEMS)
    assert [name for name in names if "[" in name] == ["freq_cache[policy=lfu]", "freq_cache[look_ahead=4]"]
    assert names[names.index("freq_cache") + 1] == "freq_cache[policy=lfu]"


def test_all_on_a_cuda_device_has_every_tuned_rival_behind_its_default() -> None:
    names = [str(variant) for variant in parse_systems("all", cuda=True)]
    assert [name for name in names if name in groups.ALL] == list(groups.ALL)
    for name in ("torchrec_uvm_caching", "fbgemm_uvm_caching"):
        tuned = [f"{name}[{setting}]" for setting in ("memory=managed", "policy=lfu", "prefetch=on")]
        assert names[names.index(name) + 1 :][:3] == tuned
        for entry in tuned:  # a value that does not exist would end the run
            registry.check_parameters(Variant.parse(entry), registry.load(Variant(name)).variants)
    assert [str(one) for one in parse_systems("approximate", cuda=True)] == list(groups.GROUPS["approximate"])


def test_systems_are_parsed_in_order_each_once() -> None:
    found = parse_systems("full_gpu,all,freq_cache[policy=lfu],freq_cache[policy=lru],no_embeddings,full_gpu")
    names = [str(variant) for variant in found]
    assert names[:2] == ["full_gpu", "reference"]
    assert names[-2:] == ["freq_cache[policy=lru]", "no_embeddings"]
    assert len(names) == len(set(names)) == len(groups.ALL) + 2


def test_no_system_at_all_is_refused() -> None:
    with pytest.raises(UnknownSystem, match="all"):
        parse_systems(" , ")


def test_class_of_ones_own_is_loaded_by_module_and_name() -> None:
    variant = Variant.parse("systems.freq_cache:FreqCache[policy=lfu]")
    assert registry.load(variant) is FreqCache


def test_class_that_is_no_system_is_refused() -> None:
    with pytest.raises(UnknownSystem, match="not an EmbeddingSystem"):
        registry.load(Variant.parse("systems.freq_cache.planner.planner:Planner"))
    with pytest.raises(UnknownSystem, match="not an EmbeddingSystem"):
        registry.load(Variant.parse("systems.freq_cache:NoSuchClass"))


def test_module_that_is_not_installed_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        registry.load(Variant.parse("no_such_package.module:System"))


def test_unknown_parameter_names_the_known_ones() -> None:
    with pytest.raises(UnknownSystem, match=r"colour.*policy, memory, prefetch"):
        registry.load(Variant.parse("fbgemm_uvm_caching[colour=red]"))
    with pytest.raises(UnknownSystem, match="none"):
        registry.load(Variant.parse("full_gpu[colour=red]"))


def test_unknown_value_names_the_allowed_ones() -> None:
    with pytest.raises(UnknownSystem, match="static, lfu"):
        registry.load(Variant.parse("freq_cache[policy=fifo]"))


def test_parameters_that_a_variant_leaves_open_take_their_defaults() -> None:
    variant = Variant.parse("fbgemm_uvm_caching[policy=lfu]")
    found = registry.resolved_parameters(variant, registry.load(variant))
    assert found == {"policy": "lfu", "memory": "host_mapped", "prefetch": "off"}


@pytest.mark.parametrize("name", [*registry.SYSTEMS, *registry.CONTROLS])
def test_every_registered_name_loads_and_says_in_a_sentence_what_it_is_good_for(name: str) -> None:
    found = registry.load(Variant.parse(name))
    assert found.__name__ in (registry.SYSTEMS | registry.CONTROLS)[name]
    assert re.fullmatch(r"[A-Z][^.]{40,180}\.", vars(found)["about"])
