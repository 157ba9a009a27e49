"""Analyses a search's result: the winner, its gain and cost, and the front of rate and p99."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_analyze.goal import METRICS
from nereid_analyze.search.adaptive import AdaptiveResult, Effect
from nereid_analyze.space.candidate import Candidate, Value, short_name, shown
from nereid_analyze.space.override import OFF
from nereid_perf.distribution import percentile_us
from nereid_perf.questions.metrics import error_share, rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid_analyze.job import Job
    from nereid_analyze.search.finals import Finalist
    from nereid_analyze.search.modes import ModeResult
    from nereid_analyze.search.trial import Sample

_MAX_ERRORS: Final = 0.01
_SECONDS: Final = 3600
# Smaller relative effects count as no effect.
_VISIBLE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of the winner that differs from the default, and the reason."""

    model: str
    name: str
    before: Value
    after: Value
    reason: str

    @property
    def text(self) -> str:
        """The change as text."""
        owner = f"{self.model}: " if self.model else ""
        return (
            f"{owner}{short_name(self.name)} {_value_text(self.before)} ->"
            f" {_value_text(self.after)}: {self.reason}"
        )


@dataclass(frozen=True)
class Analysis:
    """The analysis of a finished search."""

    job: Job
    result: AdaptiveResult | ModeResult

    @property
    def default(self) -> Finalist:
        """The default candidate among the finalists."""
        return self.result.finalists[0]

    @property
    def winner(self) -> Finalist:
        """The winner among the finalists."""
        return self.result.finalists[self.result.winner]

    @property
    def is_default_best(self) -> bool:
        """True if the default is the winner."""
        return self.result.winner == 0

    @property
    def gain(self) -> float | None:
        """Relative gain of the rate over the default's; `None` if the default has no rate."""
        before = self.default.rate if self.default.is_kept else 0.0
        return self.winner.rate / before - 1 if before else None

    @property
    def adaptive(self) -> AdaptiveResult | None:
        """The result of the adaptive search; `None` if another search mode was used."""
        return self.result if isinstance(self.result, AdaptiveResult) else None

    def cost_per_million(self, rate: float) -> float | None:
        """Return the cost of a million requests, or `None` without a price or a rate."""
        price = self.job.price_per_hour
        return price / _SECONDS / rate * 1e6 if price is not None and rate else None

    def memory_mb(self, finalist: Finalist) -> float | None:
        """Return the server's resident memory in MB, or `None` if that is not known."""
        return METRICS["cpu_used_ram"].value(finalist.best) if finalist.best is not None else None

    def changes(self) -> list[Change]:
        """Return the winner's changes, in the order of the settings."""
        default = self.job.space.default
        changes = []
        for model, name, value in self.winner.candidate.choices:
            before = default.values(model)[name]
            if value != before:
                changes.append(
                    Change(model, name, before, value, self._reason(model, name, before))
                )
        return changes

    def front(self) -> list[Sample]:
        """Return the samples that no other sample beats in both rate and p99, by rate."""
        usable = [
            sample
            for sample in self.result.samples
            if sample.trial.batch_size == 1 and error_share(sample.measurement) <= _MAX_ERRORS
        ]
        front: list[Sample] = []
        for sample in sorted(usable, key=lambda sample: -sample.measurement.requests_per_s):
            if not front or p99_us(sample) < p99_us(front[-1]):
                front.append(sample)
        return front[::-1]

    def lines(self) -> Iterator[str]:
        """Yield the lines for the terminal and the top of the report."""
        job, result = self.job, self.result
        candidates = {sample.trial.candidate for sample in result.samples}
        seconds = sum(sample.trial.seconds for sample in result.samples)
        yield (
            f"{job.mode}: {len(candidates)} of {job.space.size} candidates in"
            f" {len(result.samples)} measurements, {seconds:.0f} s of load"
        )
        yield from self._winner_lines()
        adaptive = self.adaptive
        if adaptive is not None:
            for model, times in adaptive.times.items():
                yield f"Batches of {model}: {times.text}"
            yield (
                f"No other candidate is more than 5 % better, with a probability of"
                f" {adaptive.sureness:.0%}; the model of batch times was off by"
                f" {adaptive.miss:.0%} before it was corrected"
            )
        bottleneck = sum(sample.measurement.client.is_bottleneck for sample in result.samples)
        if bottleneck:
            yield (
                f"The client was the bottleneck in {bottleneck} measurements, which say more of it"
                " than of the server: --perf-flag=--workers=2, or a machine of its own"
            )
        failed = [evaluation for evaluation in result.evaluations if evaluation.failure]
        for evaluation in failed[:3]:
            yield f"Could not be measured: {evaluation.candidate.text}: {evaluation.failure}"

    def _winner_lines(self) -> Iterator[str]:
        default, best = self.default, self.result.finalists[self.result.outcome.best]
        if not best.is_kept:
            limits = ", ".join(constraint.text for constraint in self.job.goal.constraints)
            yield f"No candidate keeps {limits or 'any rate'}; the default {self._default_text()}"
            return
        yield f"Default: {self._default_text()}"
        if best is default:
            yield "No candidate is better than the default"
            return
        if self.is_default_best:
            yield "No difference that noise does not explain: the default stays"
        title = "Nearest" if self.is_default_best else "Best"
        yield f"{title}: {self.finalist_text(best)}: {best.candidate.text}"
        yield from self._advantage_lines(best)

    def _default_text(self) -> str:
        default = self.default
        if not default.rate:
            return "serves no request"
        if default.is_kept:
            return self.finalist_text(default)
        return f"keeps no rate that was measured: {self.finalist_text(default)}"

    def _advantage_lines(self, best: Finalist) -> Iterator[str]:
        outcome = self.result.outcome
        if self.default.is_kept:
            yield f"Gain: {best.rate / self.default.rate - 1:+.1%} in the rate"
        advantage = outcome.advantage
        if advantage is None:
            return
        text = f"{', '.join(outcome.metrics)} {advantage.estimate:.3g} times as good"
        if advantage.low is not None and advantage.high is not None:
            text += f", between {advantage.low:.3g} and {advantage.high:.3g} times"
        level = outcome.level
        at = "" if level is None else f", both at {level.kind} {level.value:g}"
        yield f"In turn with the default{at}: {text}"

    def finalist_text(self, finalist: Finalist) -> str:
        """Return a finalist's line."""
        parts = [rate_text(finalist.rate)]
        if finalist.best is not None:
            parts.append(f"p99 {time_text(percentile_us(finalist.best.latencies.response, 99))}")
        level = finalist.level
        parts.append(f"at {level.kind} {level.value:g}")
        cost = self.cost_per_million(finalist.rate)
        if cost is not None:
            parts.append(f"{cost:.4g} per million inferences")
        if not finalist.is_kept:
            parts.append("misses a constraint")
        return ", ".join(parts)

    def _reason(self, model: str, name: str, before: Value) -> str:
        beside = self._measured_beside(model, name, before)
        if beside is not None:
            return beside
        effect = self.effect(model, name)
        if effect is not None:
            rates = {value: (rate, deviation) for value, rate, deviation in effect.rates}
            chosen = self.winner.candidate.values(model)[name]
            gain = rates[chosen][0] / rates[before][0] - 1
            sure = rates[before][1]
            if abs(gain) < max(_VISIBLE, sure):
                return f"the best has it; alone it is not shown to matter ({gain:+.0%} estimated)"
            return f"{gain:+.0%} estimated beside the other settings, known to {sure:.0%}"
        return "the best has it; it was not measured alone"

    def _measured_beside(self, model: str, name: str, before: Value) -> str | None:
        rates = {
            evaluation.candidate: evaluation
            for evaluation in self.result.evaluations
            if evaluation.rate
        }
        winner: Candidate = self.winner.candidate
        other = rates.get(winner.replaced(model, name, before))
        own = rates.get(winner)
        if other is None or own is None:
            return None
        gain = own.rate / other.rate - 1
        if other.is_raced:
            # The race ended early, so the rate is at most this.
            return f"at least {gain:+.0%}, measured beside the other settings"
        return f"{gain:+.0%}, measured beside the other settings"

    def effect(self, model: str, name: str) -> Effect | None:
        """Return the effect of a setting, or `None` if the search has not estimated it."""
        effects: Mapping[tuple[str, str], Effect] = {
            (effect.model, effect.name): effect
            for effect in (self.adaptive.effects if self.adaptive else ())
        }
        return effects.get((model, name))


def p99_us(sample: Sample) -> float:
    """Return the p99 of the response time in us."""
    return percentile_us(sample.measurement.latencies.response, 99)


def _value_text(value: Value) -> str:
    return "off" if value == OFF else shown(value)
