"""What models and backends declare, and what holds without a declaration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nereid.backends import (
    BackendCapabilities,
    Capabilities,
    backend_capabilities_of,
    capabilities_of,
)


def test_a_model_without_a_declaration_is_a_plain_one() -> None:
    plain = capabilities_of(SimpleNamespace(bytes_as_text=True))
    assert plain == Capabilities()
    assert not plain.executes_requests
    assert not plain.pipeline_depth
    assert backend_capabilities_of(SimpleNamespace()) == BackendCapabilities()


def test_a_declaration_is_read() -> None:
    declared = Capabilities(pipeline_depth=2)
    assert capabilities_of(SimpleNamespace(capabilities=declared)) is declared
    codes = BackendCapabilities(runs_model_code=True)
    assert backend_capabilities_of(SimpleNamespace(capabilities=codes)) is codes


def test_a_declaration_of_another_type_is_refused() -> None:
    wrong = SimpleNamespace(capabilities={"bytes_as_text": True})
    with pytest.raises(TypeError, match="is no Capabilities"):
        capabilities_of(wrong)
    with pytest.raises(TypeError, match="is no BackendCapabilities"):
        backend_capabilities_of(wrong)
