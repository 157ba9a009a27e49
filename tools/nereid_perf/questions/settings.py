"""Flags that ask questions. Flags that perf_analyzer also has are named as there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config.flags import Topic, boolean, flag, integer
from nereid_perf.questions.comparison import CONFIDENCE, ROUNDS
from nereid_perf.questions.conditions import parse_condition
from nereid_perf.questions.intervals import fewest_pairs
from nereid_perf.questions.levels import parse_concurrency_range, parse_rate_range
from nereid_perf.questions.max_rate import SearchRules
from nereid_perf.questions.metrics import parse_metric
from nereid_perf.questions.slo import parse_slo
from nereid_perf.questions.sweep import Threshold

if TYPE_CHECKING:
    from nereid.config.flags import Parse
    from nereid_perf.questions.conditions import Condition
    from nereid_perf.questions.levels import LevelRange
    from nereid_perf.questions.slo import Slo

_VOTES: Final = re.compile(r"(\d+)/(\d+)")


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number") from None
    if not least <= value <= most:
        raise ValueError(f"expected a number from {least:g} to {most:g}")
    return value


def _votes(text: str) -> tuple[int, int]:
    match = _VOTES.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 100:
        raise ValueError("expected a share such as 2/3")
    return int(match[1]), int(match[2])


def _checked(parse: Parse) -> Parse:
    """Return a parser that checks a text and returns it unchanged; "" means not given."""

    def check(text: str) -> str:
        if text:
            parse(text)
        return text

    return check


@dataclass(frozen=True, kw_only=True)
class QuestionSettings:
    """Questions about the server. They cannot be combined with --request-intervals or traces."""

    TOPIC: ClassVar = Topic.QUESTIONS

    concurrency_range: str = flag(
        "",
        "requests in flight: start:end:step, start:end:*factor, or a list 1,4,16; an end of 0 for"
        " none, with --latency-threshold; 1 unless another load is asked for",
        _checked(parse_concurrency_range),
        deprecated={"-t": "", "-c": "1:"},
    )
    request_rate_range: str = flag(
        "",
        "requests per second, sent whether or not others have ended; as before",
        _checked(parse_rate_range),
    )
    binary_search: bool = flag(
        False,
        "search the range for the highest level within --latency-threshold, to the range's step",
        boolean,
        bare="true",
    )
    latency_threshold: float = flag(
        0.0,
        "ms: stop at the first level whose latency is above it; 0: none",
        lambda text: _number(text, 0, float("inf")),
        aliases=("-l",),
    )
    percentile: str = flag(
        "",
        "of the response time: which one counts for --latency-threshold (without it, the mean) and"
        " for the curve's knee (p99)",
        _checked(lambda text: parse_metric(f"p{text}")),
    )
    find_max_rate: bool = flag(
        False, "search for the highest rate that keeps --slo", boolean, bare="true"
    )
    slo: str = flag(
        "",
        "limits such as p99=20ms,ttft=50ms,errors=0.1%; goodput is what keeps them",
        _checked(parse_slo),
    )
    max_rate_start: float = flag(
        100.0, "requests per second to begin with", lambda text: _number(text, 0.1, 1e6)
    )
    max_rate_precision: float = flag(
        0.02, "end when the rate is known this well, relative", lambda text: _number(text, 1e-3, 1)
    )
    max_rate_votes: str = flag(
        "2/3",
        "a rate keeps the SLO if this many of so many measurements do",
        _checked(_votes),
    )
    fail_if: tuple[str, ...] = flag(
        (),
        "end with exit status 3 if this holds of any level: p99>20ms, rate<1000, errors>1%; with"
        " compare, of B to A: p99_ratio>1.05",
        _checked(parse_condition),
        repeated=True,
    )
    rounds: int = flag(
        0,
        f"measure each level so often, in turns; 0: once, and {ROUNDS} times with compare",
        integer(0, 1000),
    )
    confidence: float = flag(
        CONFIDENCE,
        "of each interval of compare",
        lambda text: _number(text, 0.5, 0.9999),
    )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        errors = []
        levels = self.levels
        if self.concurrency_range and self.request_rate_range:
            errors.append("--concurrency-range and --request-rate-range: give one of them")
        if self.binary_search and (levels.end is None or not self.latency_threshold):
            errors.append("--binary-search needs a range with an end, and --latency-threshold")
        if self.binary_search and (levels.is_geometric or levels.listed):
            errors.append("--binary-search needs a range of start:end:step")
        if levels.end is None and not self.latency_threshold:
            errors.append("a range without an end needs --latency-threshold")
        if self.rounds > 1 and (self.binary_search or self.latency_threshold):
            errors.append("--rounds measures all levels: it has no --latency-threshold")
        if self.find_max_rate and not self.slo:
            errors.append("--find-max-rate needs --slo, such as p99=20ms")
        if self.find_max_rate and (self.concurrency_range or self.request_rate_range):
            errors.append("--find-max-rate chooses its rates: give no range")
        return errors

    def comparison_errors(self) -> list[str]:
        """Return the errors in the settings of a comparison, one line each."""
        errors = []
        if 0 < self.rounds < fewest_pairs(self.confidence):
            errors.append(
                f"--rounds: at confidence {self.confidence:g} an interval needs"
                f" {fewest_pairs(self.confidence)} rounds at least"
            )
        if self.levels.end is None or self.binary_search or self.latency_threshold:
            errors.append("compare needs levels with an end, and no threshold")
        if self.find_max_rate:
            errors.append("compare and --find-max-rate are two questions: ask one of them")
        return errors

    @property
    def levels(self) -> LevelRange:
        """Range of levels to measure."""
        if self.request_rate_range:
            return parse_rate_range(self.request_rate_range)
        return parse_concurrency_range(self.concurrency_range or "1")

    @property
    def threshold(self) -> Threshold | None:
        """Latency threshold, or `None`."""
        if not self.latency_threshold:
            return None
        return Threshold(
            parse_metric(f"p{self.percentile}" if self.percentile else "avg"),
            self.latency_threshold * 1000,
        )

    @property
    def search_rules(self) -> SearchRules:
        """Rules of the search for the highest rate."""
        needed, votes = _votes(self.max_rate_votes)
        return SearchRules(
            start=self.max_rate_start,
            precision=self.max_rate_precision,
            needed=needed,
            votes=votes,
        )

    @property
    def objective(self) -> Slo | None:
        """Service level objective, or `None`."""
        return parse_slo(self.slo) if self.slo else None

    @property
    def conditions(self) -> list[Condition]:
        """Conditions that make the run fail."""
        return [parse_condition(text) for text in self.fail_if]
