"""Settings that clients may change at run time: stored here, and sent to every service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.wire.codecs import write_log_rules
from nereid.observability.logging import apply_log_rules, initial_log_rules
from nereid.observability.trace_config import parse_trace_config
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.control.state.setting_records import LOG, TRACE, SettingRecords
from nereid_scheduler.pages import log_settings
from nereid_scheduler.pages.trace_settings import TraceExtensionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from nereid.core.wire.messages import Notice
    from nereid.observability.logging import LogSettings


class MeshSettings:
    """Keeps the current trace and log settings."""

    def __init__(
        self,
        log: LogSettings,
        trace_config: Sequence[str],
        send_to_gateways: Callable[[Notice], None],
        send_to_executors: Callable[[pb.ExecutorCommand], None],
        records: SettingRecords | None = None,
    ) -> None:
        self._records = records or SettingRecords(None)
        self._trace = TraceExtensionSettings(parse_trace_config(trace_config))
        self._log = initial_log_rules(log)
        self._log_file = log.log_file
        self._log_changed = False
        self._send_to_gateways = send_to_gateways
        self._send_to_executors = send_to_executors

    def notices(self) -> Iterator[Notice]:
        """Yield the current settings, for a gateway that has connected."""
        rules = self._trace.rules()
        if rules is not None:
            yield rules
        if self._log_changed:
            yield self._log

    def commands(self) -> Iterator[pb.ExecutorCommand]:
        """Yield the current settings, for an executor that has joined."""
        if self._log_changed:
            command = pb.ExecutorCommand()
            write_log_rules(self._log, command.log_rules)
            yield command

    def restore(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply the changes that clients made before the scheduler's start, from the records."""
        self._records.apply(documents, TRACE, self._restore_trace)
        self._records.apply(documents, LOG, self._apply_log)

    async def trace(self, model: str, changes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Change a model's, or without a name the server's, trace settings; return all of them.

        Raises NereidError if a change is refused. Then nothing has changed.
        """
        if changes:
            self._trace.update(model, changes)
            self._send_trace()
            await self._records.record(TRACE, self._trace.saved())
        return self._trace.shown(model)

    async def log(self, changes: Mapping[str, object]) -> dict[str, bool | int | str]:
        """Change and return the log settings. Raises NereidError as `trace` does."""
        if self._apply_log(changes):
            await self._records.record(LOG, log_settings.saved_settings(self._log))
        return log_settings.shown_settings(self._log, self._log_file)

    def _restore_trace(self, saved: Mapping[str, Any]) -> None:
        self._trace.restore(saved)
        self._send_trace()

    def _send_trace(self) -> None:
        rules = self._trace.rules()
        if rules is not None:
            self._send_to_gateways(rules)

    def _apply_log(self, changes: Mapping[str, object]) -> bool:
        rules = log_settings.apply_changes(self._log, changes)
        if rules == self._log:
            return False
        self._log = rules
        self._log_changed = True
        apply_log_rules(rules)
        self._send_to_gateways(rules)
        for command in self.commands():
            self._send_to_executors(command)
        return True
