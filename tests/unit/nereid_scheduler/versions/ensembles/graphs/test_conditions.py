"""Graphs whose steps have conditions. A tensor is a tuple of the values of its rows."""

import random
from collections.abc import Sequence

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, freeze_config, parse_config
from nereid.model_config.defaults import read_defaults
from nereid.pb.model_config_pb2 import ModelConfig
from nereid_scheduler.versions.ensembles.graphs.graph import (
    GraphRun,
    NextActions,
    Plan,
    StepCall,
    steps_of,
)
from nereid_scheduler.versions.ensembles.graphs.graph import Step as GraphStep
from tests.support.scheduler.ensemble_configs import Step, ensemble_config

Tensor = tuple[int, ...]


class Rows:
    """Implements graph.Rows for tuples."""

    def __init__(self, count: int, defaults: dict[str, int]) -> None:
        self.count, self.defaults = count, defaults

    def read(self, name: str, tensor: Tensor | None) -> Sequence[float]:
        assert tensor is not None, name
        return tensor

    def default(self, name: str, rows: Sequence[int] | None) -> Tensor:
        return (self.defaults[name],) * (self.count if rows is None else len(rows))

    def select(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        return tuple(tensor[row] for row in rows)

    def join(
        self, name: str, parts: Sequence[tuple[Sequence[int], Tensor | None]]
    ) -> Tensor | None:
        values: dict[int, int] = {}
        for rows, tensor in parts:
            assert tensor is not None, name
            values.update(zip(rows, tensor, strict=True))
        return tuple(values[row] for row in sorted(values))


def made_by(step: GraphStep, values: Sequence[int]) -> int:
    """What a step makes of a row: a small number, so that conditions differ."""
    return (sum(values) * 7 + step.index * 5) % 4


class Run:
    """One request, whose calls respond in the order that the test says."""

    def __init__(
        self, config: ModelConfig, rows: Tensor, outputs: Sequence[str] = (), **omitted: None
    ) -> None:
        defaults = read_defaults(config)
        names = outputs or [tensor.name for tensor in config.output]
        plan = Plan(steps_of(config), names, defaults)
        self.run: GraphRun[Tensor] = GraphRun(plan, Rows(len(rows), defaults))
        self.calls: list[StepCall[Tensor]] = []
        self.ran: list[tuple[str, Tensor]] = []
        self.skipped: list[str] = []
        self.released: list[Tensor] = []
        self.responses: list[list[Tensor | None]] = []
        self._record(self.run.start({"x": rows, **omitted}))

    def _record(self, actions: NextActions[Tensor]) -> None:
        self.calls += actions.calls
        self.skipped += [step.model for step in actions.skipped]
        self.released += actions.released
        self.responses += actions.responses

    def respond(self, place: int = 0) -> None:
        call = self.calls.pop(place)
        values = list(zip(*call.tensors.values(), strict=True))
        made = tuple(made_by(call.step, row) for row in values)
        self.ran.append((call.step.model, made))
        outputs = {name: made for name, _ in call.step.output_map}
        self._record(self.run.on_response(call, outputs))

    def finish(self) -> list[Tensor | None]:
        while self.calls:
            self.respond()
        (response,) = self.responses
        assert self.run.finished
        return response


def step(model: str, reads: str, makes: str) -> Step:
    """Return a step with inputs t0, t1 ... and outputs t0, t1 ..."""
    return (
        model,
        {f"t{number}": name for number, name in enumerate(reads.split())},
        {f"t{number}": name for number, name in enumerate(makes.split())},
    )


def ensemble(*steps: Step, inputs: str = "x", outputs: str = "y", **parameters: str) -> ModelConfig:
    """Return a valid configuration. parameters: conditions by model, and `default_X`."""
    more = ""
    for key, text in parameters.items():
        kind, _, name = key.rpartition("_")
        more += f"parameters {{ key: '{kind or 'condition'}.{name}' "
        more += f"value {{ string_value: '{text}' }} }}\n"
    config = parse_config(
        ensemble_config(inputs.split(","), outputs.split(), steps, more), model_name="e"
    )
    completed = complete_config(config, model_name="e", description=None)
    return freeze_config(completed).proto


LOOK, ONE, OTHER = step("look", "x", "c"), step("one", "x", "y"), step("other", "x", "y")
BRANCHES = ensemble(LOOK, ONE, OTHER, one="c >= 2", other="c < 2")


def test_the_step_whose_condition_holds_runs_and_the_other_is_skipped() -> None:
    # Of x = 2, `look` makes 14 % 4 = 2; of 0, it makes 0.
    for x, ran, skipped in ((2, "one", "other"), (0, "other", "one")):
        run = Run(BRANCHES, (x,))
        assert [call.step.model for call in run.calls] == ["look"]
        assert not run.skipped
        run.respond()
        assert [call.step.model for call in run.calls] == [ran]
        assert run.skipped == [skipped]
        run.finish()


def test_a_step_waits_for_its_condition_and_for_its_inputs_in_any_order() -> None:
    config = ensemble(
        LOOK, step("make", "x", "m"), step("one", "m", "y"), one="c == 2", default_y="3"
    )
    for x, first in ((2, "look"), (2, "make"), (0, "look"), (0, "make")):
        run = Run(config, (x,))
        order = [call.step.model for call in run.calls]
        run.respond(order.index(first))
        assert [call.step.model for call in run.calls if call.step.model == "one"] == []
        run.respond()
        assert [call.step.model for call in run.calls] == (["one"] if x else [])
        response = run.finish()
        assert response == [(3,)] if not x else run.skipped == []
        # `m` once if `one` does not read it, `c` once.
        assert len(run.released) == (1 if x else 2)


def test_steps_behind_a_skipped_one_are_skipped() -> None:
    config = ensemble(
        LOOK,
        step("one", "x", "m"),
        step("behind", "m x", "n"),
        step("last", "n", "y"),
        one="c == 2",
        default_y="1",
    )
    run = Run(config, (0,))
    assert run.finish() == [(1,)]
    assert run.skipped == ["one", "behind", "last"]
    # x is not read by `one` and `behind`; c was read by a condition.
    assert run.released == [(0,), (0,), (0,)]


def test_an_omitted_input_of_a_skipped_step_needs_no_release() -> None:
    config = ensemble(LOOK, step("one", "x w", "y"), one="c == 2", default_y="1", inputs="x,w")
    run = Run(config, (0,), w=None)
    assert run.finish() == [(1,)]
    assert run.released == [(0,), (0,)]


def test_a_default_goes_to_the_steps_behind_it() -> None:
    config = ensemble(
        LOOK, step("one", "x", "m"), step("last", "m", "y"), one="c == 2", default_m="9"
    )
    run = Run(config, (0, 0))
    run.respond()
    assert run.calls[0].tensors == {"t0": (9, 9)}
    run.finish()


def test_only_the_steps_for_the_requested_outputs_and_their_conditions_run() -> None:
    config = ensemble(
        LOOK, ONE, OTHER, step("free", "x", "z"), outputs="y z", one="c > 1", other="c <= 1"
    )
    run = Run(config, (1,), ["z"])
    assert [call.step.model for call in run.calls] == ["free"]
    run = Run(config, (1,), ["y"])
    assert [call.step.model for call in run.calls] == ["look"]


def test_rows_that_disagree_are_divided_and_joined_in_their_order() -> None:
    run = Run(BRANCHES, (2, 0, 2, 0, 0))
    run.respond()
    assert [(call.step.model, call.tensors["t0"]) for call in run.calls] == [
        ("one", (2, 2)),
        ("other", (0, 0, 0)),
    ]
    assert all(call.is_repeated for call in run.calls)
    run.respond(1)
    assert not run.responses
    one, other = (2 * 7 + 5) % 4, 10 % 4
    assert run.finish() == [(one, other, one, other, other)]


def test_a_tensor_that_comes_after_the_division_is_divided_as_well() -> None:
    config = ensemble(
        LOOK,
        step("make", "x", "m"),
        step("one", "x m", "y"),
        step("other", "m", "y"),
        outputs="y m",
        one="c == 2",
        other="c != 2",
    )
    run = Run(config, (2, 0))
    run.respond()
    assert [call.step.model for call in run.calls] == ["make"]
    run.respond()
    assert [len(call.tensors["t0"]) for call in run.calls] == [1, 1]
    _, m = run.finish()
    # It is passed on whole.
    assert m == next(made for model, made in run.ran if model == "make")


def random_ensemble(numbers: random.Random) -> ModelConfig | None:
    """Return a random ensemble, or `None` if the paths do not all have sources."""
    tensors, steps, parameters = ["x"], [], {}
    for index in range(numbers.randint(2, 7)):

        def reads() -> str:
            return " ".join(numbers.sample(tensors, numbers.randint(1, min(2, len(tensors)))))

        number, makes = numbers.randint(0, 3), f"m{index}"
        kind = numbers.choice(["plain", "plain", "branches", "default", "single"])
        steps.append(step(f"a{index}", reads(), makes))
        if kind != "plain":
            on = numbers.choice(tensors)
            one, other = numbers.choice([("==", "!="), (">=", "<"), (">", "<=")])
            parameters[f"a{index}"] = f"{on} {one} {number}"
            if kind == "branches":
                steps.append(step(f"b{index}", reads(), makes))
                parameters[f"b{index}"] = f"{on} {other} {number}"
            if kind == "default":
                parameters[f"default_{makes}"] = str(numbers.randint(0, 3))
        tensors.append(makes)
    read = {tensor for _, inputs, _ in steps for tensor in inputs.values()}
    read |= {text.split()[0] for key, text in parameters.items() if not key.startswith("default")}
    unread = [tensor for tensor in tensors if tensor not in read]
    outputs = {*unread, numbers.choice(tensors[1:])} - {"x"}
    numbers.shuffle(steps)
    try:
        return ensemble(*steps, outputs=" ".join(sorted(outputs)), **parameters)
    except InvalidArgument:
        return None


def expected_row(config: ModelConfig, x: int) -> dict[str, int]:
    """Evaluate one row by itself, step for step, until nothing changes."""
    defaults, values = read_defaults(config), {"x": x}
    steps = steps_of(config)
    unsettled = {each.index for each in steps}
    while unsettled:
        for each in steps:
            producers = {
                tensor: [one.index for one in steps if tensor in dict(one.output_map).values()]
                for tensor in each.needs()
            }
            if each.index not in unsettled or any(
                unsettled & {*indexes} for indexes in producers.values()
            ):
                continue
            unsettled.discard(each.index)
            for tensor in producers:
                if tensor not in values and tensor in defaults:
                    values[tensor] = defaults[tensor]
            if all(tensor in values for tensor in producers) and (
                each.condition is None or each.condition.holds(values[each.condition.tensor])
            ):
                made = made_by(each, [values[tensor] for _, tensor in each.input_map])
                values.update((tensor, made) for _, tensor in each.output_map)
    return {**defaults, **values}


@pytest.mark.parametrize("seed", range(8))
def test_any_ensemble_does_with_many_rows_what_it_does_with_each(seed: int) -> None:
    numbers = random.Random(seed)
    divided = 0
    for _ in range(60):
        config = random_ensemble(numbers)
        if config is None:
            continue
        rows = tuple(numbers.randint(0, 3) for _ in range(numbers.randint(1, 5)))
        run = Run(config, rows)
        while run.calls:
            run.respond(numbers.randrange(len(run.calls)))
        expected = [expected_row(config, x) for x in rows]
        assert run.responses == [
            [tuple(row[tensor.name] for row in expected) for tensor in config.output]
        ]
        assert run.run.finished
        divided += len({model for model, _ in run.ran}) < len(run.ran)
    assert divided
