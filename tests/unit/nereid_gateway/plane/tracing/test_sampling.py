"""Which requests a gateway traces by rules that may change while it runs."""

from nereid.core.wire.messages import InferRequest, TraceRule, TraceRules
from nereid.pb import kserve_pb2
from nereid_gateway.plane.tracing.sampling import Sampling

OFF = TraceRule(on=False, rate=1, limit=-1)
ALL = TraceRule(on=True, rate=1, limit=-1)
SECOND = TraceRule(on=True, rate=2, limit=-1)


def wanted(sampling: Sampling, model: str, count: int = 4) -> list[bool]:
    head = kserve_pb2.ModelInferRequest(model_name=model).SerializeToString()
    request = InferRequest(0, head, [])
    return [sampling.sampler_of(request).takes_next() for _ in range(count)]


def test_a_model_goes_by_its_own_rule_and_the_others_by_the_servers() -> None:
    sampling = Sampling(OFF)
    sampling.set_rules(TraceRules(SECOND, (("m", ALL), ("n", OFF))))
    assert wanted(sampling, "m") == [True] * 4
    assert wanted(sampling, "n") == [False] * 4
    assert wanted(sampling, "other") == [False, True, False, True]
    sampling.set_rules(TraceRules(OFF))
    assert wanted(sampling, "m") == [False] * 4


def test_an_unchanged_rule_keeps_its_count() -> None:
    sampling = Sampling(SECOND)
    thrice = TraceRule(on=True, rate=1, limit=3)
    sampling.set_rules(TraceRules(SECOND, (("m", thrice),)))
    assert wanted(sampling, "other", 1) == [False]
    assert wanted(sampling, "m", 2) == [True, True]
    sampling.set_rules(TraceRules(SECOND, (("m", thrice), ("n", ALL))))
    assert wanted(sampling, "other", 1) == [True]
    assert wanted(sampling, "m", 2) == [True, False]


def test_a_head_that_cannot_be_read_goes_by_the_servers_rule() -> None:
    sampling = Sampling(ALL)
    sampling.set_rules(TraceRules(ALL, (("m", OFF),)))
    assert sampling.sampler_of(InferRequest(0, b"\xff", [])).takes_next()
    default, own = sampling.samplers
    assert (default.rule, own.rule) == (ALL, OFF)
