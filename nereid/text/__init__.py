"""Mapping between texts and tensors of models: vectors, scores, labels and generated texts.

`read_mapping` is a pure function of a model's configuration and files.
"""

from nereid.text.mapping import TextMapping
from nereid.text.reading import may_be_text_model, read_mapping
from nereid.text.tensors import TextInput

__all__ = ["TextInput", "TextMapping", "may_be_text_model", "read_mapping"]
