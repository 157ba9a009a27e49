"""Supervision of child processes: start, watch, restart with back-off, and drain in order.

Each child has its own session, so Ctrl-C reaches only the supervisor. A child ends with the
supervisor, even if that is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nereid.config.inherited_secrets import SecretsFile
from nereid.process.standby import Activation
from nereid.rpc.net.backoff import Backoff, BackoffOptions
from nereid_mesh.serve.child_process import ChildProcess, StandbyProcess
from nereid_mesh.serve.watchdog import HeartbeatPipe, Watchdog, until_hung

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from nereid_mesh.serve.plan import ChildSpec, SupervisionRules

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
# Exit codes after which restarts do not help: the child refused its settings (2), or failed to load
# a model (3).
_FINAL_CODES = frozenset({2, 3})
# The children cut off requests at the same limit, and the errors must still reach clients.
_FINAL_RESPONSES_S = 2.0
_POLL_INTERVAL_S = 0.05
# Words before the module's own arguments: the interpreter, -P, -m and the module.
_PROGRAM_WORDS = 4


_NO_STANDBYS: Mapping[str, StandbyProcess] = MappingProxyType({})


@dataclass
class _Started:
    process: ChildProcess
    heartbeats: HeartbeatPipe


class Supervisor:
    """Keeps children running until stop(), or until one ends with a final exit code (2 or 3)."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        rules: SupervisionRules,
        on_ended: Callable[[ChildSpec], None] = lambda _: None,
        standbys: Mapping[str, StandbyProcess] = _NO_STANDBYS,
    ) -> None:
        """Prepare the supervision; run() starts it."""
        self._specs = specs
        self._environ = {
            name: text for name, text in os.environ.items() if name not in rules.secret_variables
        }
        self._rules = rules
        self._on_ended = on_ended
        self._standbys = dict(standbys)
        self._processes: dict[str, ChildProcess] = {}
        self._stopping = asyncio.Event()
        self._kill_now = asyncio.Event()
        self._exit_code = 0

    def stop(self) -> None:
        """Drain the children and end. A second call ends the children at once."""
        if self._stopping.is_set():
            self._kill_now.set()
        else:
            text = "finishing what was accepted, for at most %g s; a second signal ends it now"
            _log.info(text, self._rules.exit_timeout_s)
        self._stopping.set()

    async def run(self) -> int:
        """Keep the children running until stop(); return the exit code for this process."""
        tasks = [asyncio.create_task(self._keep_running(spec)) for spec in self._specs]
        await self._stopping.wait()
        await self._drain()
        await asyncio.gather(*tasks)
        # A task may have started another standby meanwhile.
        self._end_standbys()
        return self._exit_code

    async def _keep_running(self, spec: ChildSpec) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(
            BackoffOptions(
                first_s=_FIRST_PAUSE_S, factor=2, largest_s=self._rules.longest_pause_s, jitter=0
            )
        )
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._run_once(spec)
            if self._stopping.is_set():
                return
            if code in _FINAL_CODES:
                self._exit_code = code
                self._stopping.set()
                return
            if spec.name in self._standbys:
                # A child gets a standby only after it has served for a while, so no back-off is
                # needed.
                backoff.succeeded()
                _log.warning("%s ended (%s); its standby takes over", spec.name, _cause(code))
                continue
            pause_s = backoff.next_delay_s(loop.time() - started)
            # Exit code 0 means that the child was asked to end, for example an executor to drain.
            level = logging.WARNING if code else logging.INFO
            _log.log(
                level, "%s ended (%s); restarting it in %g s", spec.name, _cause(code), pause_s
            )
            await _first_of(self._stopping.wait(), timeout_s=pause_s)

    async def _run_once(self, spec: ChildSpec) -> int:
        child = self._start(spec)
        try:
            process = self._processes[spec.name] = child.process
            watch = asyncio.create_task(self._kill_if_hung(spec, process, child.heartbeats))
            preparation = asyncio.create_task(self._prepare_standby(spec, process))
            code = await _end_of(process)
            self._on_ended(spec)
            watch.cancel()
            await asyncio.gather(watch, preparation, return_exceptions=True)
            return code
        finally:
            child.heartbeats.close()

    def _start(self, spec: ChildSpec) -> _Started:
        heartbeats = HeartbeatPipe()
        try:
            with SecretsFile(spec.secrets) as secrets:
                environ = {**self._environ, **secrets.environ, **heartbeats.environ, **spec.environ}
                own = (*secrets.descriptors, *heartbeats.descriptors)
                descriptors = (*own, *spec.descriptors)
                process = self._activate_standby(spec, environ, descriptors)
                if process is None:
                    process = ChildProcess(spec.argv, environ, descriptors)
        except BaseException:
            heartbeats.close()
            raise
        heartbeats.on_started()
        return _Started(process, heartbeats)

    def _activate_standby(
        self, spec: ChildSpec, environ: Mapping[str, str], descriptors: Sequence[int]
    ) -> ChildProcess | None:
        standby = self._standbys.pop(spec.name, None)
        if standby is None:
            return None
        try:
            return standby.activate(Activation(spec.argv[_PROGRAM_WORDS:], environ, descriptors))
        except OSError:
            return None

    async def _prepare_standby(self, spec: ChildSpec, serving: ChildProcess) -> None:
        if spec.standby_after_s is None:
            return
        await _first_of(self._stopping.wait(), _end_of(serving), timeout_s=spec.standby_after_s)
        if serving.returncode is None and not self._stopping.is_set():
            self._standbys[spec.name] = StandbyProcess(spec.argv)

    def _end_standbys(self) -> None:
        standbys, self._standbys = self._standbys, {}
        for standby in standbys.values():
            standby.kill()

    async def _kill_if_hung(
        self, spec: ChildSpec, process: ChildProcess, pipe: HeartbeatPipe
    ) -> None:
        limit_s = self._rules.watchdog_timeout_s
        if limit_s:
            await until_hung(pipe, Watchdog(limit_s, may_block=spec.may_block), process.pid)
            _log.error("%s hangs: no heartbeat for %g s or more; killing it", spec.name, limit_s)
            _signal(process, signal.SIGKILL)

    async def _drain(self) -> None:
        """Send SIGTERM to each stage after the previous one's end, SIGKILL at the limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._rules.exit_timeout_s + _FINAL_RESPONSES_S
        self._end_standbys()
        for stage in sorted({spec.stage for spec in self._specs}):
            members = [
                self._processes[spec.name]
                for spec in self._specs
                if spec.stage == stage and spec.name in self._processes
            ]
            for process in members:
                _signal(process, signal.SIGTERM)
            # Once the earlier stages have ended, a later stage has no client's request left.
            limit_s = max(_FINAL_RESPONSES_S, deadline - loop.time())
            await _first_of(_all_ended(members), self._kill_now.wait(), timeout_s=limit_s)
            for process in members:
                _signal(process, signal.SIGKILL)


async def _first_of(*coroutines: Coroutine[Any, Any, object], timeout_s: float) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _all_ended(processes: Sequence[ChildProcess]) -> None:
    for process in processes:
        await _end_of(process)


async def _end_of(process: ChildProcess) -> int:
    while (code := process.returncode) is None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # The system does not report the end of a process.
            await asyncio.sleep(_POLL_INTERVAL_S)
        else:
            await _until_readable(descriptor)
    return code


async def _until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _signal(process: ChildProcess, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
