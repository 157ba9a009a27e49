"""Settings of the trace extension: settings of the server, and settings of single models.

A model inherits each setting that it does not have itself. Clearing a setting of the server
restores its value from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.c_integers import parse_c_integer
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.wire.messages import TraceRule, TraceRules
from nereid.observability.trace_config import FILE_MODE, LEVELS, SPAN_MODE, trace_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.observability.trace_config import TraceConfig

_OFF: Final = "OFF"
_UINT32: Final = (1 << 32) - 1
_INT32: Final = (1 << 31) - 1
# Triton does not trace unless a file name is given.
_NO_FILE: Final = "Attempting to set invalid trace setting :trace file name is not given"


class TraceExtensionSettings:
    """Keeps the current settings. Each value is a list of texts, as in clients' requests."""

    def __init__(self, config: TraceConfig) -> None:
        self._traces = config.on
        self._to_file = config.to_file
        self._fixed = _fixed(config)
        self._start: dict[str, list[str]] = {
            "trace_level": list(config.levels) or [_OFF],
            "trace_rate": [str(config.rate)],
            "trace_count": [str(config.count)],
            "log_frequency": [str(config.log_frequency)],
        }
        self._server = dict(self._start)
        self._models: dict[str, dict[str, list[str]]] = {}
        # Setting trace_count restarts the count of traces. Key: a model, or "" for the server.
        # Value: the number of its last restart.
        self._last_turn = 0
        self._turns = {"": 0}

    def update(self, model: str, changes: Mapping[str, Sequence[str]]) -> None:
        """Apply all changes of a client, or none. If `model` is "", they are for the server.

        An empty value clears a setting. Raises NereidError if a value is invalid, or if this server
        does not trace.
        """
        if "trace_file" in changes:
            raise Unimplemented("trace file location can not be updated through network protocol")
        parsed = {
            name: parser(list(changes[name])) if changes[name] else None
            for name, parser in _PARSERS.items()
            if name in changes
        }
        # If no level in the list is known, the list changes nothing.
        changed = {name: value for name, value in parsed.items() if value != []}
        if not self._traces and changed.get("trace_level") not in (None, [_OFF]):
            raise InvalidArgument(_NO_FILE)
        if "trace_count" in changed:
            self._last_turn += 1
            self._turns[model] = self._last_turn
        target = self._models.setdefault(model, {}) if model else self._server
        for name, value in changed.items():
            if value is not None:
                target[name] = value
            elif model:
                target.pop(name, None)
            else:
                target[name] = self._start[name]
        if model and not target:
            del self._models[model]

    def shown(self, model: str) -> dict[str, list[str]]:
        """Return all settings of a model, also inherited ones; of the server if `model` is ""."""
        settings = self._server | self._models.get(model, {}) | self._fixed
        if self._traces and not self._to_file:
            del settings["log_frequency"]
        return settings

    def saved(self) -> dict[str, Any]:
        """Return the changes that clients have made, as JSON types, for `restore`."""
        server = {name: value for name, value in self._server.items() if value != self._start[name]}
        return {"server": server, "models": dict(self._models), "turns": dict(self._turns)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Apply changes that `saved` returned to the values from the start.

        Raises NereidError as `update` does, or another error if `saved` did not return this value.
        """
        restored = {"": saved["server"]} | saved["models"]
        for model, changes in restored.items():
            known = {name: [str(value) for value in changes[name]] for name in changes}
            self.update(model, {name: known[name] for name in known if name in _PARSERS})
        # Keep the numbers of the restarts, so that gateways continue counts that they have begun.
        self._turns = {str(model): int(turn) for model, turn in saved["turns"].items()}
        self._turns.setdefault("", 0)
        self._last_turn = max(self._turns.values())

    def rules(self) -> TraceRules | None:
        """Return the rules for gateways, or `None` if this server does not trace."""
        if not self._traces:
            return None
        turn = self._turns[""]
        models = (
            (name, _rule(self._server | own, self._turns[name] if "trace_count" in own else turn))
            for name, own in self._models.items()
        )
        return TraceRules(_rule(self._server, turn), tuple(models))


def _fixed(config: TraceConfig) -> dict[str, list[str]]:
    if not config.to_spans:
        return {"trace_file": [config.file], "trace_mode": [FILE_MODE]}
    fixed = {
        "trace_mode": [SPAN_MODE],
        "url": [config.url or "http://localhost:4317"],
        "bsp_max_queue_size": [str(config.max_queue_size)],
        "bsp_schedule_delay": [str(config.schedule_delay_ms)],
        "bsp_max_export_batch_size": [str(config.max_export_batch_size)],
    }
    if config.resource:
        fixed["resource"] = [",".join(f"{key}={value}" for key, value in config.resource)]
    return fixed


def _rule(settings: Mapping[str, Sequence[str]], turn: int) -> TraceRule:
    levels = () if settings["trace_level"] == [_OFF] else settings["trace_level"]
    rate, count, log_frequency = (
        int(settings[name][0]) for name in ("trace_rate", "trace_count", "log_frequency")
    )
    rule = trace_rule(levels, rate, count, log_frequency)
    return rule._replace(turn=turn) if count >= 0 else rule


def _levels(values: list[str]) -> list[str]:
    if _OFF in values:
        if len(values) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return [_OFF]
    return [level for level in LEVELS if level in values]


def _parse_number(name: str, values: list[str]) -> tuple[str, int]:
    if len(values) != 1:
        raise InvalidArgument(f"expect only 1 value for '{name}'")
    number = parse_c_integer(values[0])
    if number is None:
        raise InvalidArgument(f"Unable to parse '{name}', got: {values[0]}")
    return values[0], number


def _unsigned(name: str) -> Callable[[list[str]], list[str]]:
    def parse(values: list[str]) -> list[str]:
        text, number = _parse_number(name, values)
        if not -_INT32 - 1 <= number <= _UINT32:
            raise InvalidArgument(
                f"Unable to parse '{name}', value is out of range [ 0, {_UINT32} ], got: {text}"
            )
        return [str(number & _UINT32)]

    return parse


def _count(values: list[str]) -> list[str]:
    text, number = _parse_number("trace_count", values)
    if number < -1:
        raise InvalidArgument(f"Unable to parse 'trace_count'. Expecting value >= -1, got: {text}")
    if number > _INT32:
        raise InvalidArgument(
            f"Unable to parse 'trace_count', value is out of range [ -1, {_INT32} ], got: {text}"
        )
    return [str(number)]


_PARSERS: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    "trace_level": _levels,
    "trace_rate": _unsigned("trace_rate"),
    "trace_count": _count,
    "log_frequency": _unsigned("log_frequency"),
}
