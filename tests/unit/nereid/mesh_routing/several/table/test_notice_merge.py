"""What several schedulers announce, as one."""

from __future__ import annotations

from nereid.core.wire.messages import (
    CachedModels,
    LastCounts,
    LogRules,
    ModelsChanged,
    ModelShadows,
    Ownership,
    TraceRule,
    TraceRules,
    TrafficKeys,
)
from nereid.mesh_routing.several.table.notice_merge import NoticeMerge

OFF = TraceRule(on=False, rate=1000, limit=-1)
ON = TraceRule(on=True, rate=1, limit=-1)
OWN = TraceRule(on=True, rate=7, limit=3)
QUIET = LogRules(0, info=False, warning=True, error=True, format="default")
LOUD = QUIET._replace(verbose=2)


def test_digests_are_wanted_for_the_models_of_all_that_have_the_same_key() -> None:
    merge = NoticeMerge[str]()
    first = merge.on_notice("a", CachedModels(("m",), "domain", b"key"))
    assert first == CachedModels(("m",), digest_key=b"key")
    both = merge.on_notice("b", CachedModels(("l", "m"), "other", b"key"))
    assert both == CachedModels(("l", "m"), digest_key=b"key")
    assert merge.on_notice("c", CachedModels(("x",), "", b"another")) == both
    assert merge.on_down("a") == both
    assert merge.on_down("b") == CachedModels(("x",), digest_key=b"another")
    assert merge.on_down("c") is None


def test_without_a_cache_no_digest_is_wanted() -> None:
    assert NoticeMerge[str]().on_notice("a", CachedModels((), "domain")) == CachedModels(())


def test_log_rules_count_when_they_change() -> None:
    merge = NoticeMerge[str]()
    assert merge.on_notice("a", QUIET) == QUIET
    # It joins, with rules that it may have from its command line.
    assert merge.on_notice("b", LOUD) is None
    assert merge.on_notice("b", LOUD) is None
    assert merge.on_notice("b", QUIET) == QUIET
    assert merge.on_notice("a", LOUD) == LOUD
    merge.on_down("a")
    merge.on_down("b")
    assert merge.on_notice("b", QUIET) == QUIET


def test_trace_rules_count_when_they_change_each_model_for_itself() -> None:
    merge = NoticeMerge[str]()
    assert merge.on_notice("a", TraceRules(ON)) == TraceRules(ON)
    # Its models' rules are news, its default is not.
    joined = merge.on_notice("b", TraceRules(OFF, (("m", OWN),)))
    assert joined == TraceRules(ON, (("m", OWN),))
    assert merge.on_notice("b", TraceRules(OFF, (("m", OWN),))) is None
    changed = merge.on_notice("a", TraceRules(ON, (("l", OFF),)))
    assert changed == TraceRules(ON, (("l", OFF), ("m", OWN)))
    assert merge.on_notice("b", TraceRules(OWN)) == TraceRules(OWN, (("l", OFF),))
    assert merge.on_notice("a", TraceRules(OFF, (("l", ON),))) == TraceRules(OFF, (("l", ON),))


def test_the_first_scheduler_after_all_were_lost_sets_the_rules() -> None:
    merge = NoticeMerge[str]()
    merge.on_notice("a", TraceRules(ON))
    merge.on_down("a")
    assert merge.on_notice("b", TraceRules(OFF)) == TraceRules(OFF)


def test_what_a_scheduler_counted_at_its_end_is_passed_on() -> None:
    assert NoticeMerge[str]().on_notice("a", LastCounts(b"counts")) == LastCounts(b"counts")
    # Each scheduler counts its own changes.
    assert NoticeMerge[str]().on_notice("a", ModelsChanged(1)) == ModelsChanged(1)


def test_other_notices_are_not_its_business() -> None:
    assert NoticeMerge[str]().on_notice("a", Ownership("a", 1, ())) is None


def test_sources_of_keys_are_those_of_all_and_a_lost_one_s_until_a_successor_has_others() -> None:
    merge = NoticeMerge[str]()
    merge.on_notice("a", TrafficKeys((("m", "principal"),)))
    both = merge.on_notice("b", TrafficKeys((("n", "header:x"),)))
    assert both == TrafficKeys((("m", "principal"), ("n", "header:x")))
    merge.on_down("a")
    assert merge.on_notice("b", TrafficKeys((("n", "header:y"),))) == TrafficKeys(
        (("m", "principal"), ("n", "header:y"))
    )
    assert merge.on_notice("b", TrafficKeys((("m", "header:z"),))) == TrafficKeys(
        (("m", "header:z"),)
    )


def test_clients_are_needed_if_any_says_so_also_after_its_end() -> None:
    merge = NoticeMerge[str]()
    assert merge.on_notice("a", TrafficKeys((), clients=True)) == TrafficKeys((), clients=True)
    assert merge.on_notice("b", TrafficKeys(())) == TrafficKeys((), clients=True)
    merge.on_down("a")
    assert merge.on_notice("b", TrafficKeys(())) == TrafficKeys((), clients=True)


def test_shadows_are_those_of_all_live_schedulers() -> None:
    merge = NoticeMerge[str]()
    merge.on_notice("a", ModelShadows((("m", "1"),)))
    both = merge.on_notice("b", ModelShadows((("n", "2"),)))
    assert both == ModelShadows((("m", "1"), ("n", "2")))
    assert merge.on_notice("a", ModelShadows(())) == ModelShadows((("n", "2"),))
    merge.on_down("b")
    assert merge.on_notice("a", ModelShadows((("m", "3"),))) == ModelShadows((("m", "3"),))
