"""Findings of `nereid check` about models that take texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nereid.facts.findings import Severity
from nereid_mesh.check.texts import text_findings
from tests.support.models.onnx_models import config

if TYPE_CHECKING:
    from pathlib import Path

ENCODER = """
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
"""
HIDDEN = 'output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 8 ] }\n'
LOGITS = 'output { name: "logits" data_type: TYPE_FP32 dims: [ 5 ] }\n'
PADDING = "input_ids[0]=0 attention_mask[0] -> last_hidden_state[0]: 16 24 32"
PADDED = f'parameters {{ key: "padding" value {{ string_value: "{PADDING}" }} }}'
FACTS = '{"max_position_embeddings": 32}'


def findings(
    folder: Path, tensors: str, max_batch_size: int = 4, /, **files: str
) -> dict[str, tuple[Severity, str, str]]:
    (folder / "1").mkdir()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    message = config(tensors)
    message.max_batch_size = max_batch_size
    found = list(text_findings(folder, "1", message))
    return {each.code: (each.severity, each.message, each.hint) for each in found}


def test_a_mapping_is_summarized(tmp_path: Path) -> None:
    found = findings(tmp_path, ENCODER + HIDDEN + PADDED, tokenizer="{}", config=FACTS)
    text = (
        "it takes texts (embed): input_ids, attention_mask -> last_hidden_state; pooling mean;"
        " normalized; up to 32 tokens"
    )
    assert found == {"text-model": (Severity.NOTE, text, "")}


def test_labels_are_listed(tmp_path: Path) -> None:
    found = findings(tmp_path, ENCODER + LOGITS, 1, tokenizer="{}")
    assert found["text-model"][1].endswith(
        "-> logits; 5 labels by softmax (LABEL_0, LABEL_1, LABEL_2, LABEL_3, ...)"
    )
    assert len(found) == 1


def test_a_generator_is_summarized(tmp_path: Path) -> None:
    tensors = """
    input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] optional: true }
    output { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }
    """
    template = '{"chat_template": "[TOOL_CALLS]"}'
    declared = '{"task": "generate", "generation": {"parameters": ["temperature"]}}'
    found = findings(tmp_path, tensors, text=declared, tokenizer_config=template)
    assert found["text-model"][1] == (
        "it takes texts (generate): TEXT -> SAID; takes temperature, seed; chat template;"
        " tools as mistral"
    )


def test_padding_is_proposed_where_lengths_do_not_batch(tmp_path: Path) -> None:
    found = findings(tmp_path, ENCODER + HIDDEN, tokenizer="{}", config=FACTS)
    severity, text, hint = found["text-lengths"]
    assert (severity, text) == (
        Severity.WARNING,
        "texts share a batch only if they have equal numbers of tokens",
    )
    assert hint == f"write in config.pbtxt: {PADDED}"


def test_a_faulty_mapping_is_a_warning(tmp_path: Path) -> None:
    found = findings(tmp_path, ENCODER + HIDDEN, tokenizer="{}", text='{"polling": 1}')
    severity, text, _ = found["text-mapping"]
    assert severity is Severity.WARNING
    assert text.startswith("it takes no texts: text.json: unknown key 'polling'")


@pytest.mark.parametrize(
    ("files", "code"),
    [({"config": FACTS}, "no-tokenizer"), ({"text": '{"task": "embed"}'}, "text-mapping")],
)
def test_a_missing_tokenizer_is_named(tmp_path: Path, files: dict[str, str], code: str) -> None:
    (found,) = findings(tmp_path, ENCODER + HIDDEN, **files).items()
    assert (found[0], "AutoTokenizer" in found[1][2]) == (code, True)


def test_other_models_have_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, LOGITS, config="{}") == {}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    severity, text, _ = findings(tmp_path, ENCODER + HIDDEN, tokenizer="{}")["text-mapping"]
    assert (severity, "config.json: it has more than" in text) == (Severity.WARNING, True)
