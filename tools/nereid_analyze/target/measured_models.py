"""Measures trials: loads candidates, and sends load with the sessions of `nereid perf`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Self

from nereid_analyze.search.trial import CandidateError
from nereid_analyze.space.candidate import EXECUTORS
from nereid_analyze.target.served_models import ServedModels, TargetError
from nereid_perf.inputs.errors import InputError
from nereid_perf.measured_side import plan_of, resolved_inputs
from nereid_perf.run_settings import read_run_settings
from nereid_perf.server import Server, ServerError
from nereid_perf.session import Session, SessionError, WindowSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from nereid_analyze.search.trial import Trial
    from nereid_analyze.space.candidate import Candidate
    from nereid_analyze.target.local_mesh import LocalMesh
    from nereid_perf.endpoint import Endpoint
    from nereid_perf.measurement import Measurement
    from nereid_perf.plan import Plan
    from nereid_perf.run_settings import RunSettings

# Seconds of warm-up after a load: the first requests of an instance take longest.
_WARM_UP_S: Final = 0.4
_GO_ON_S: Final = 0.1
# The limit is long, because a load may build engines.
_LOAD_S: Final = 600.0
_DRAIN_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class MeasuredTarget:
    """The target of the measurements; `models` has weights, `composing` is tuned too.

    start_mesh: takes a number of executors; `None` if endpoint is a running server.
    """

    endpoint: Endpoint
    models: Mapping[str, int]
    composing: tuple[str, ...] = ()
    cpu_only: frozenset[str] = frozenset()
    reloads: bool = True
    flags: Mapping[str, tuple[str, ...]]
    metrics_url: str = ""
    bls_models: tuple[str, ...] = ()
    start_mesh: Callable[[int | None], LocalMesh] | None = None
    seed: int = 0


class MeasuredModels:
    """A context that measures trials. It owns the load sessions, and the mesh if it starts one."""

    def __init__(self, target: MeasuredTarget) -> None:
        self._target = target
        self._exits = ExitStack()
        self._mesh: LocalMesh | None = None
        self._executors: int | None = None
        self._served: ServedModels
        self._server: Server
        self._sessions: dict[int, Session] = {}
        self._default: Candidate | None = None

    def __enter__(self) -> Self:
        """Start the mesh if needed, and load the models. May raise TargetError."""
        self._open(None)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._close()

    @property
    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        """Maps each model to its configuration without a candidate."""
        return self._served.configs

    def sent_rows(self, batch_sizes: Iterable[int]) -> dict[str, int]:
        """Map each model to the largest request that clients have sent, or that a trial sends."""
        rows = dict(self._served.sent_rows)
        for model in self._target.models:
            for size in batch_sizes:
                # --perf-flag may set another size.
                rows[model] = max(rows[model], self._settings(model, size).inputs.batch_size)
        return rows

    @property
    def server(self) -> Server:
        """The server that is measured."""
        return self._server

    def use_default(self, default: Candidate) -> None:
        """Set the default candidate, from which other candidates differ."""
        self._default = default

    def measure(self, trial: Trial) -> Measurement:
        """Load and measure a candidate. May raise CandidateError, or TargetError (no server)."""
        candidate = trial.candidate
        assert self._default is not None, "use_default comes before trials"
        executors = candidate.values("").get(EXECUTORS)
        if isinstance(executors, int) and executors != self._executors:
            self._close()
            self._open(executors)
        loaded = self._served.load(candidate, self._default)
        try:
            session = self._session(trial.batch_size)
            warm_up_s = _WARM_UP_S if loaded else _GO_ON_S
            measurement = session.measure_for(trial.level, trial.seconds, warm_up_s)
        except (SessionError, ServerError) as error:
            self._drop_sessions()
            if not self._is_there():
                raise TargetError(f"the server does not respond any more: {error}") from error
            raise CandidateError(str(error)) from error
        if self._mesh is None:
            return measurement
        resident = float(self._mesh.resident_bytes())
        gauges = {**measurement.gauges, "server_resident_memory_bytes": (resident, resident)}
        return replace(measurement, gauges=gauges)

    def _open(self, executors: int | None) -> None:
        target = self._target
        with ExitStack() as exits:
            endpoint = target.endpoint
            if target.start_mesh is not None:
                self._mesh = exits.enter_context(target.start_mesh(executors))
                endpoint = self._mesh.endpoint(endpoint.protocol)
            self._executors = executors
            self._endpoint = endpoint
            self._server = Server(endpoint, timeout_s=_LOAD_S)
            names = dict.fromkeys((*target.composing, *target.models))
            self._served = exits.enter_context(
                ServedModels(self._server, names, cpu_only=target.cpu_only, reloads=target.reloads)
            )
            exits.callback(self._drop_sessions)
            self._exits = exits.pop_all()

    def _close(self) -> None:
        self._exits.close()
        self._mesh = None

    def _session(self, batch_size: int) -> Session:
        session = self._sessions.get(batch_size)
        if session is None:
            target = self._target
            metrics_url = target.metrics_url if self._mesh is None else self._mesh.metrics_url
            try:
                session = Session(
                    self._plan(batch_size),
                    WindowSettings(drain_s=_DRAIN_S),
                    server=self._server,
                    bls_models=target.bls_models,
                    metrics_url=metrics_url,
                    metrics_interval_s=0.5,
                )
                session.__enter__()
            except InputError as error:
                raise TargetError(f"{error}; --perf-flag passes it on") from error
            except OSError as error:
                raise TargetError(str(error)) from error
            # Keep the other sessions open: idle worker processes cost little.
            self._sessions[batch_size] = session
        return session

    def _drop_sessions(self) -> None:
        for session in self._sessions.values():
            session.__exit__(None, None, None)
        self._sessions = {}

    def _plan(self, batch_size: int) -> Plan:
        settings = [self._settings(model, batch_size) for model in self._target.models]
        inputs = [resolved_inputs(one, self._server) for one in settings]
        if any(plan.region_prefix or plan.traces for plan in inputs):
            raise InputError("neither shared memory nor traces: leave --shared-memory and --replay")
        weights = self._target.models
        models = tuple(
            replace(model, weight=Fraction(weights[model.name]))
            for plan in inputs
            for model in plan.models
        )
        return plan_of(settings[0], replace(inputs[0], models=models))

    def _settings(self, model: str, batch_size: int) -> RunSettings:
        endpoint = self._endpoint
        argv = [
            f"--model-name={model}",
            f"--batch-size={batch_size}",
            f"--url={endpoint.address}",
            f"--protocol={endpoint.protocol}",
            f"--random-seed={self._target.seed}",
            *self._target.flags.get(model, ()),
        ]
        return read_run_settings(argv, "nereid analyze")

    def _is_there(self) -> bool:
        try:
            self._server.extensions()
        except ServerError:
            return False
        # The server need not be ready: a candidate may have made a model unavailable.
        return True
