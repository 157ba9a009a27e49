"""The settings that clients may change while the mesh runs: held here, told to every service.

Of gateways' links and executors' streams it knows only how to tell them something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.codecs import write_log_rules
from nereid.observability.logging import follow_log_rules, rules_of
from nereid.observability.trace_config import parse_trace_config
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.observability import log_settings
from nereid.services.scheduler.observability.trace_settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nereid.core.messages import Notice
    from nereid.services.scheduler.settings import Settings


class MeshSettings:
    """What is in force. tell_gateways and tell_executors reach those that are there now."""

    def __init__(
        self,
        settings: Settings,
        tell_gateways: Callable[[Notice], None],
        tell_executors: Callable[[pb.ExecutorCommand], None],
    ) -> None:
        self._trace = TraceSettings(parse_trace_config(settings.trace_config))
        self._log = rules_of(settings)
        self._log_file = settings.log_file
        self._log_changed = False
        self._tell_gateways = tell_gateways
        self._tell_executors = tell_executors

    def notices(self) -> Iterator[Notice]:
        """What a gateway that is new has to know."""
        rules = self._trace.rules()
        if rules is not None:
            yield rules
        if self._log_changed:
            yield self._log

    def commands(self) -> Iterator[pb.ExecutorCommand]:
        """What an executor that is new has to know."""
        if self._log_changed:
            command = pb.ExecutorCommand()
            write_log_rules(self._log, command.log_rules)
            yield command

    def trace(self, model: str, changes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """The trace settings of a model or, without a name, of the server, after changes to them.

        Raises:
            NereidError: a change was refused, and none was made.
        """
        if changes:
            self._trace.update(model, changes)
            rules = self._trace.rules()
            if rules is not None:
                self._tell_gateways(rules)
        return self._trace.shown(model)

    def log(self, changes: Mapping[str, Any]) -> dict[str, bool | int | str]:
        """The log settings after changes to them; raises NereidError as trace() does."""
        rules = log_settings.changed(self._log, changes)
        if rules != self._log:
            self._log = rules
            self._log_changed = True
            follow_log_rules(rules)
            self._tell_gateways(rules)
            for command in self.commands():
                self._tell_executors(command)
        return log_settings.shown(rules, self._log_file)
