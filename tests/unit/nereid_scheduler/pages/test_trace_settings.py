"""The trace extension's settings, as Triton's clients know them."""

import json
from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, NereidError, Unimplemented
from nereid.core.wire.messages import TraceRule, TraceRules
from nereid.observability.trace_config import TraceConfig
from nereid_scheduler.pages.trace_settings import TraceExtensionSettings

ON = TraceConfig(levels=("TIMESTAMPS",), rate=2, mode="opentelemetry", resource=(("a", "b"),))


def changeable(settings: TraceExtensionSettings, model: str = "") -> tuple[list[str], str, str]:
    shown = settings.shown(model)
    return shown["trace_level"], shown["trace_rate"][0], shown["trace_count"][0]


def test_a_server_that_does_not_trace_shows_what_triton_shows() -> None:
    settings = TraceExtensionSettings(TraceConfig())
    assert settings.shown("") == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }
    assert settings.rules() is None
    with pytest.raises(InvalidArgument, match="trace file name is not given"):
        settings.update("", {"trace_level": ["TENSORS"]})
    settings.update("m", {"trace_level": ["OFF"], "trace_rate": ["7"], "log_frequency": ["4"]})
    assert changeable(settings, "m") == (["OFF"], "7", "-1")
    assert settings.shown("m")["log_frequency"] == ["4"]
    assert settings.rules() is None


def test_a_server_that_traces_shows_its_collector() -> None:
    shown = TraceExtensionSettings(ON).shown("m")
    assert shown["trace_mode"] == ["opentelemetry"]
    assert shown["url"] == ["http://localhost:4317"]
    assert shown["resource"] == ["a=b"]
    assert "log_frequency" not in shown


def test_a_server_that_writes_files_shows_the_file() -> None:
    settings = TraceExtensionSettings(TraceConfig(file="/f", log_frequency=3))
    shown = settings.shown("m")
    assert shown["trace_mode"] == ["triton"]
    assert shown["trace_file"] == ["/f"]
    assert shown["log_frequency"] == ["3"]
    assert shown["trace_level"] == ["OFF"]
    settings.update("m", {"trace_level": ["TENSORS"], "log_frequency": ["5"]})
    rule = TraceRule(on=True, rate=1000, limit=-1, log_frequency=5, times=False, tensors=True)
    off = TraceRule(on=False, rate=1000, limit=-1, log_frequency=3)
    assert settings.rules() == TraceRules(off, (("m", rule),))


def test_a_model_inherits_the_servers_settings() -> None:
    settings = TraceExtensionSettings(ON)
    settings.update("m", {"trace_count": ["7"], "trace_level": ["OFF"]})
    settings.update("", {"trace_rate": ["9"], "trace_level": ["TENSORS", "TIMESTAMPS", "X"]})
    assert changeable(settings) == (["TIMESTAMPS", "TENSORS"], "9", "-1")
    assert changeable(settings, "m") == (["OFF"], "9", "7")
    off = TraceRule(on=False, rate=9, limit=7, turn=1)
    on = TraceRule(on=True, rate=9, limit=-1, tensors=True)
    assert settings.rules() == TraceRules(on, (("m", off),))
    settings.update("m", {"trace_count": [], "trace_level": []})
    assert changeable(settings, "m") == changeable(settings)
    settings.update("", {"trace_rate": [], "trace_level": []})
    assert changeable(settings, "m") == (["TIMESTAMPS"], "2", "-1")
    assert settings.rules() == TraceRules(TraceRule(on=True, rate=2, limit=-1))


def test_setting_a_count_restarts_counting() -> None:
    settings = TraceExtensionSettings(ON)

    def rules(model: str, **changes: list[str]) -> list[TraceRule]:
        settings.update(model, changes)
        current = settings.rules()
        assert current is not None
        return [current.default, *(rule for _, rule in current.models)]

    (first,) = rules("", trace_count=["3"])
    assert rules("", trace_rate=["2"]) == [first]
    (again,) = rules("", trace_count=["3"])
    assert again != first
    assert again._replace(turn=first.turn) == first
    # A model's is its own, and any other's what it was.
    for _ in range(2):
        default, own = rules("m", trace_count=["3"], trace_level=["OFF"])
        assert default == again
        assert own not in {first, again}
        default, inherited = rules("m", trace_count=[])
        assert default == again
        assert inherited == again._replace(on=False)
    # Without a limit there is nothing to begin.
    assert rules("", trace_count=["-1"])[0] == rules("", trace_count=["-1"])[0]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("trace_rate", " 12x", "12"),
        ("trace_rate", "-1", "4294967295"),
        ("trace_count", "+3", "3"),
        ("trace_count", "-1", "-1"),
    ],
)
def test_numbers_are_read_as_c_reads_them(name: str, value: str, shown: str) -> None:
    settings = TraceExtensionSettings(ON)
    settings.update("", {name: [value]})
    assert settings.shown("")[name] == [shown]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"trace_rate": ["x"]}, InvalidArgument),
        ({"trace_rate": ["1", "2"]}, InvalidArgument),
        ({"log_frequency": ["4294967296"]}, InvalidArgument),
        ({"trace_count": ["-2"]}, InvalidArgument),
        ({"trace_count": ["9" * 99]}, InvalidArgument),
        ({"trace_level": ["OFF", "TENSORS"]}, InvalidArgument),
        ({"trace_file": ["f"]}, Unimplemented),
    ],
)
def test_an_invalid_value_is_refused_and_changes_nothing(
    changes: dict[str, list[str]], error: type[NereidError]
) -> None:
    settings = TraceExtensionSettings(ON)
    before = settings.shown("")
    with pytest.raises(error):
        settings.update("", {"trace_rate": ["5"], **changes})
    assert settings.shown("") == before


def test_unknown_settings_are_ignored() -> None:
    settings = TraceExtensionSettings(ON)
    before = settings.shown("m")
    settings.update("m", {"trace_mode": ["x"], "nope": ["1"], "trace_level": ["X"]})
    assert settings.shown("m") == before


def test_what_clients_changed_is_saved_and_applied_to_other_values_from_the_start() -> None:
    settings = TraceExtensionSettings(ON)
    settings.update("", {"trace_rate": ["5"], "trace_count": ["9"]})
    settings.update("m", {"trace_level": ["OFF"], "trace_count": ["3"]})
    settings.update("m", {"trace_count": ["3"]})
    saved = json.loads(json.dumps(settings.saved()))
    assert saved["server"] == {"trace_rate": ["5"], "trace_count": ["9"]}

    restored = TraceExtensionSettings(TraceConfig(levels=("TENSORS",), file="/f", rate=70))
    restored.restore(saved)
    assert changeable(restored) == (["TENSORS"], "5", "9")
    assert changeable(restored, "m") == (["OFF"], "5", "3")
    # Gateways that have counted some of these traces go on.
    rules, known = settings.rules(), restored.rules()
    assert rules is not None
    assert known is not None
    assert (known.default.turn, known.models[0][1].turn) == (
        rules.default.turn,
        rules.models[0][1].turn,
    )
    restored.update("", {"trace_count": ["9"]})
    after = restored.rules()
    assert after is not None
    assert after.default.turn > rules.models[0][1].turn


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"server": ["x"], "models": {}, "turns": {}},
        {"server": {"trace_rate": 5}, "models": {}, "turns": {}},
        {"server": {}, "models": {"m": {"trace_rate": ["x"]}}, "turns": {}},
        {"server": {}, "models": {}, "turns": {"": "x"}},
        {"server": {}, "models": {}, "turns": []},
        {"server": {}, "models": []},
    ],
    ids=["empty", "server", "value", "number", "turn", "turns", "models"],
)
def test_what_was_not_saved_here_is_an_error_that_is_expected(saved: dict[str, Any]) -> None:
    with pytest.raises((NereidError, ValueError, TypeError, KeyError, AttributeError)):
        TraceExtensionSettings(ON).restore(saved)


def test_settings_of_a_server_that_traced_are_refused_where_tracing_is_off() -> None:
    settings = TraceExtensionSettings(ON)
    settings.update("m", {"trace_level": ["TENSORS"]})
    with pytest.raises(InvalidArgument, match="trace file name is not given"):
        TraceExtensionSettings(TraceConfig()).restore(settings.saved())
