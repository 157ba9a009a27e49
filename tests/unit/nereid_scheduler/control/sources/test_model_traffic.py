"""How traffic is set, recorded, restored, and announced to gateways."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nereid.comparison.shadow import Shadow
from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.files.file_watch import FileError
from nereid.core.traffic.weights import Traffic, make_traffic
from nereid.core.wire.messages import ModelShadows, TrafficKeys
from nereid.pb import model_config_pb2
from nereid_scheduler.control.sources.model_traffic import ModelTraffic
from nereid_scheduler.control.sources.traffic_file import read_traffic_file
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.setting_records import SettingRecords
from nereid_scheduler.core.models.traffic_table import FileSetting, TrafficSetting
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles
from tests.support.scheduler.state_store import MemoryStateStore
from tests.support.scheduler.world import served_model, served_version

BY_HEADER = make_traffic({1: 1}, "header:x-user")
PLAIN = make_traffic({1: 1})


def ensemble(name: str, step: str) -> model_config_pb2.ModelConfig:
    draft = model_config_pb2.ModelConfig(name=name, platform="ensemble")
    draft.ensemble_scheduling.step.add(model_name=step)
    return draft


def config_with_input(name: str) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig(name="m")
    config.input.add(name=name)
    return config


class Site:
    """Traffic of a model m, of an ensemble e of it, and of an ensemble o of e."""

    def __init__(self, store: MemoryStateStore | None = None) -> None:
        served = served_version("m", shown=config_with_input("X"))
        self.catalogue = Catalogue([served_model("m", served)])
        self.ensembles = Ensembles(self.catalogue, lambda _served, _event: None)
        for name, step in (("e", "m"), ("o", "e")):
            draft = ensemble(name, step)
            each = served_version(name, draft=draft, shown=draft)
            self.catalogue.set_model(served_model(name, each))
            self.ensembles.add_ensemble(each)
        self.recorder = StateRecorder(store or MemoryStateStore())
        self.changes: list[str] = []
        self.events: list[tuple[Any, ...]] = []
        self.traffic = ModelTraffic(
            self.catalogue,
            self.ensembles,
            SettingRecords(self.recorder),
            self._on_change,
            lambda *event, **rest: self.events.append((*event, rest)),
        )

    def _on_change(self, name: str) -> None:
        self.changes.append(name)

    def announced_anew(self) -> tuple[TrafficKeys, ModelShadows]:
        """Return what somebody announces who has seen no change."""
        traffic = ModelTraffic(
            self.catalogue,
            self.ensembles,
            SettingRecords(None),
            self._on_change,
            lambda *_, **__: None,
        )
        for name in "mneo":
            traffic.refresh(name)
        traffic.refresh()
        traffic.refresh_shadows()
        return traffic.keys, traffic.shadows

    def found(self, name: str = "m") -> Traffic | None:
        found = self.traffic.find(name)
        return None if found is None else found.traffic


async def test_what_was_set_is_recorded_and_restored() -> None:
    store = MemoryStateStore()
    site = Site(store)
    await site.recorder.read()
    await site.traffic.set("m", BY_HEADER, "alice")
    assert site.changes == ["m"]
    (event,) = site.events
    assert event == (
        *("traffic", "'m'", "1=1 by header:x-user"),
        {"model": "m", "principal": "alice"},
    )
    await site.recorder.close()
    after = Site(store)
    documents = await after.recorder.read()
    after.traffic.restore({**documents, "settings/log": {}})
    assert after.found() == BY_HEADER
    await after.traffic.set("m", None)
    assert after.found() is None
    await after.recorder.close()


async def test_sources_of_keys_are_announced_once_with_the_ensembles_that_need_them() -> None:
    site = Site()
    assert site.traffic.refresh() is None
    await site.traffic.set("m", PLAIN)
    assert site.traffic.refresh() is None
    await site.traffic.set("m", BY_HEADER)
    sources = tuple((name, "header:x-user") for name in ("e", "m", "o"))
    assert site.traffic.refresh() == TrafficKeys(sources)
    assert site.traffic.keys == TrafficKeys(sources)
    assert site.traffic.refresh() is None
    # Requests that come without the key go where they went before.
    assert site.catalogue.traffic.before("m") == (PLAIN,)
    await site.traffic.set("e", make_traffic({1: 1}, "principal"))
    notice = site.traffic.refresh()
    assert notice is not None
    assert dict(notice.models) == {"m": "header:x-user", "e": "principal", "o": notice.models[2][1]}
    await site.traffic.set("m", None)
    await site.traffic.set("e", None)
    assert site.traffic.refresh() == TrafficKeys(())


@pytest.mark.parametrize("seed", range(3))
async def test_a_change_of_one_model_announces_what_all_together_do(seed: int) -> None:
    site, random = Site(), Random(seed)
    sources = [None, *(make_traffic({1: 1}, by) for by in ("sequence", "header:x", "principal"))]
    shadows = [None, Shadow("version:2"), Shadow("model:z")]
    parameters = {
        "target_p99_us": "1000",
        "traffic": json.dumps(BY_HEADER.document()),
        "shadow": shadows[1].text() if shadows[1] else "",
    }
    for _ in range(40):
        name = random.choice("mneo")
        change = random.choice(["call", "shadow", "file", "version"])
        if change == "version":
            model = site.catalogue.model(name) or served_model(name)
            draft = model_config_pb2.ModelConfig(name=name)
            if name in "eo":
                draft = model.versions[1].draft
            for key in random.sample(sorted(parameters), random.randrange(3)):
                draft.parameters[key].string_value = parameters[key]
                site.catalogue.configured_traffic.add(name)
            state = random.choice(["loading", "unloading"])
            model.versions[1] = served_version(name, draft=draft, state=state)
            site.catalogue.set_model(model)
            site.changes.append(name)
        elif change == "file":
            chosen = FileSetting(random.choice(sources), random.choice(shadows))
            site.traffic.set_file({name: chosen} if random.random() < 0.7 else {})
        else:
            with suppress(InvalidArgument, NotFound):
                if change == "call":
                    await site.traffic.set(name, random.choice(sources))
                else:
                    await site.traffic.set_shadow(name, random.choice(shadows))
        for changed in site.changes:
            site.traffic.refresh(changed)
            site.traffic.refresh_shadows(changed)
        site.changes.clear()
        assert (site.traffic.keys, site.traffic.shadows) == site.announced_anew()
        assert (site.traffic.refresh(), site.traffic.refresh_shadows()) == (None, None)


async def test_unknown_models_and_those_of_the_file_are_refused() -> None:
    site = Site()
    with pytest.raises(NotFound, match="'x' is not found"):
        await site.traffic.set("x", PLAIN)
    site.traffic.set_file({"m": FileSetting(PLAIN)})
    assert site.found() == PLAIN
    with pytest.raises(InvalidArgument, match="--traffic-file"):
        await site.traffic.set("m", None)
    site.traffic.set_file({"m": FileSetting(PLAIN), "x": FileSetting(PLAIN)})
    site.traffic.set_file({"m": FileSetting(BY_HEADER)})
    assert site.found() == BY_HEADER
    site.traffic.set_file({})
    assert site.found() is None
    # Each change of a model, and nothing else.
    assert Counter(event[1] for event in site.events) == {"'m'": 3, "'x'": 2}


async def test_shadows_come_from_the_file_a_call_or_the_configuration() -> None:
    site = Site()
    text = Shadow("model:e").text()
    draft = model_config_pb2.ModelConfig()
    draft.parameters["shadow"].string_value = text
    served = served_version("n", state="loading", draft=draft)
    site.catalogue.set_model(served_model("n", served))
    site.catalogue.configured_traffic.add("n")
    assert site.traffic.refresh_shadows() == ModelShadows((("n", text),))
    assert site.traffic.refresh_shadows() is None
    with pytest.raises(ValueError, match="no shadow of itself"):
        await site.traffic.set_shadow("n", Shadow("model:n"))
    await site.traffic.set_shadow("n", Shadow("version:2"))
    found = site.traffic.find_shadow("n")
    assert found == (Shadow("version:2"), "call")
    assert site.traffic.compared_with("n", 2) == (0, 0)
    site.traffic.set_file({"n": FileSetting(shadow=Shadow("version:3"))})
    with pytest.raises(InvalidArgument, match="the shadow of model 'n' is in the file"):
        await site.traffic.set_shadow("n", None)
    # The file has no weights of it.
    await site.traffic.set("n", PLAIN)
    assert site.traffic.refresh_shadows() == ModelShadows((("n", Shadow("version:3").text()),))
    assert site.traffic.compared_with("n", 2) is None
    site.traffic.set_file({})
    await site.traffic.set_shadow("n", None)
    found = site.traffic.find_shadow("n")
    assert found == (Shadow("model:e"), "configuration")
    assert [event[0] for event in site.events] == ["shadow"] * 2 + ["traffic"] + ["shadow"] * 2


def test_the_file_has_weights_and_shadows(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text(
        '{"m": {"weights": {"1": 1}, "shadow": {"to": "version:2"}}, "n": {"shadow": {"to":'
        ' "model:m", "percent": 0}}, "o": {"weights": {"1": 1}}}',
        # As Windows' editors write a byte order mark.
        encoding="utf-8-sig",
    )
    assert read_traffic_file(str(path)) == {
        "m": FileSetting(PLAIN, Shadow("version:2")),
        "n": FileSetting(None, Shadow("model:m", percent=0)),
        "o": FileSetting(PLAIN),
    }


def test_what_the_model_has_not_is_logged_once_for_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()

    def logged() -> list[str]:
        site.traffic.refresh()
        site.traffic.refresh()
        texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        caplog.clear()
        return texts

    missing = (
        "version 7 has a weight but is not served (served: 1): it has to be in the repository and"
        " in version_policy"
    )
    site.traffic.set_file(
        {"m": FileSetting(make_traffic({1: 1, 7: 1, 8: 0})), "unknown": FileSetting(PLAIN)}
    )
    assert logged() == [f"traffic of model 'm': {missing}"]
    site.traffic.set_file({"m": FileSetting(make_traffic({1: 1, 7: 2}, "tensor:x"))})
    no_input = "version 1 has no input 'x' (it has X): its callers are not kept together"
    assert logged() == [f"traffic of model 'm': {missing}; {no_input}"]
    assert site.traffic.mismatches("m") == (missing, no_input)
    # Nothing is said while the version may be on its way.
    model = site.catalogue.only_model("m")
    assert model is not None
    model.versions[7] = served_version("m", 7, state="loading")
    assert logged() == []
    model.versions[7] = served_version("m", 7, shown=config_with_input("x"))
    assert logged() == [f"traffic of model 'm': {no_input}"]
    site.traffic.set_file({"m": FileSetting(make_traffic({7: 1}, "tensor:x"))})
    assert logged() == []
    site.traffic.set_file({})
    assert logged() == []


def test_a_change_of_one_model_reads_no_other(caplog: pytest.LogCaptureFixture) -> None:
    # Each load of a thousand models would read all of them.
    site = Site()
    site.traffic.set_file({name: FileSetting(make_traffic({7: 1})) for name in "me"})
    site.traffic.refresh("m")
    (record,) = (each for each in caplog.records if each.levelname == "WARNING")
    assert "model 'm'" in record.getMessage()
    site.traffic.refresh()
    assert "model 'e'" in caplog.records[-1].getMessage()


def test_the_later_of_two_schedulers_settings_counts() -> None:
    site = Site()
    site.traffic.merge({"m": TrafficSetting(PLAIN, 5), "n": TrafficSetting(PLAIN, 5)})
    site.traffic.merge({"m": TrafficSetting(BY_HEADER, 4)})
    assert site.found() == PLAIN
    assert site.changes == ["m", "n"]
    assert [name for name, _ in site.traffic.shared()] == ["m", "n"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "no object"),
        ("{", "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"m": {"weights": {"1": 1}}, "m": {}}', "occurs twice"),
        ('{"m": {"weights": {"1": 0}}, "n": 3}', "model 'm': .*; model 'n': "),
        ('{"m": {"shadow": {"to": "version:0"}}}', "model 'm': shadow: expected to be version"),
        ('{"m": {"shadow": {"to": "model:m"}}}', "no shadow of itself"),
        ('{"m": {"shadow": null}}', "shadow: expected an object"),
        ('{"m": {"shadow": {"to": "version:2"}, "by": "principal"}}', "expected weights"),
    ],
)
def test_a_wrong_file_is_refused_with_all_reasons(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "traffic.json"
    with pytest.raises(FileError, match="cannot be read"):
        read_traffic_file(str(path))
    path.write_text(text)
    with pytest.raises(FileError, match=reason):
        read_traffic_file(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match="no JSON"):
        read_traffic_file(str(path))
