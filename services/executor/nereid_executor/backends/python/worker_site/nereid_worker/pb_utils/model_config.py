"""The configuration object for auto_complete_config, and functions that look up fields."""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """A model's configuration for `auto_complete_config`. Fields of the file cannot be changed."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as a dictionary, which is not a copy."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set max_batch_size (0: no batching); raise ValueError if the file has a larger one."""
        written = self._model_config["max_batch_size"]
        if written > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {written}, but in auto-complete-config "
                f"function for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching; ValueError for an ensemble or a model with sequence batching."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but "
                    f"auto-complete-config function for model '{self._name}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002 - the API's name
        """Add an input, or complete the input of that name; ValueError if a field does not fit.

        Fields: "name", "data_type" ("TYPE_FP32"), "dims" (without the batch dimension; -1 is
        variable), and optionally "optional" (a bool).
        """
        self._check_properties("input", input, ("name", "data_type", "dims", "optional"))
        self._add_tensor("input", input)

    def add_output(self, output: dict[str, Any]) -> None:
        """Add or complete an output with "name", "data_type" and "dims", as in `add_input`."""
        self._check_properties("output", output, ("name", "data_type", "dims"))
        self._add_tensor("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set the field "decoupled" (a bool); ValueError if the file has another value."""
        for name in transaction_policy_dict.keys():  # noqa: SIM118 - only a dictionary has them
            if name != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for model "
                    f"'{self._name}' contains property other than 'decoupled'."
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = wanted

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _check_properties(
        self, role: str, tensor: dict[str, Any], allowed: tuple[str, ...]
    ) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if any(name not in allowed for name in tensor):
            known = ", ".join(f"'{name}'" for name in allowed[:-1])
            raise ValueError(
                f"{role} '{tensor['name']}' {where} contains property other than "
                f"{known} and '{allowed[-1]}'."
            )
        if "name" not in tensor:
            raise ValueError(f"{role} {where} is missing 'name' property.")
        for name in ("data_type", "dims"):
            if name not in tensor:
                raise ValueError(f"{role} '{tensor['name']}' {where} is missing '{name}' property.")

    def _add_tensor(self, role: str, tensor: dict[str, Any]) -> None:
        tensors = self._model_config.setdefault(role, [])
        for written in tensors:
            if written["name"] == tensor["name"]:
                self._check_same(role, written, tensor)
                written.update(tensor)
                return
        tensors.append(tensor)

    def _check_same(self, role: str, written: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        data_type = written["data_type"]
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} "
                f"for {role} '{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            # An empty list of dims counts as not set in the file.
            is_written = bool(written.get(key)) if key == "dims" else key in written
            if is_written and key in tensor and written[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} "
                    f"but the model configuration specifies {key} {written[key]}"
                )


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the configuration of an input, or None if there is no input of this name."""
    return _named(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the configuration of an output, or None if there is no output of this name."""
    return _named(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return whether the model is decoupled (may send any number of responses to a request)."""
    if "model_transaction_policy" not in model_config:
        return False
    decoupled: bool = model_config["model_transaction_policy"]["decoupled"]
    return decoupled


def _named(model_config: dict[str, Any], role: str, name: str) -> dict[str, Any] | None:
    tensors: list[dict[str, Any]] = model_config[role] if role in model_config else []  # noqa: SIM401 - whatever has `in`, as on Triton
    return next((tensor for tensor in tensors if tensor["name"] == name), None)
