"""What auto_complete_config gets and fills in, and look-ups in a configuration."""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """A model's configuration, to be completed; what is written may be added to, not changed."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError if a larger one is written."""
        written = self._model_config["max_batch_size"]
        if written > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {written}, but in auto-complete-config "
                f"function for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError if another scheduler is written."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but "
                    f"auto-complete-config function for model '{self._name}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002 - the API's name
        """Raises ValueError if it is described wrongly, or differs from what is written."""
        self._check_properties("input", input, ("name", "data_type", "dims", "optional"))
        self._add_tensor("input", input)

    def add_output(self, output: dict[str, Any]) -> None:
        """Raises ValueError as add_input does."""
        self._check_properties("output", output, ("name", "data_type", "dims"))
        self._add_tensor("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Raises ValueError for a property but 'decoupled', or if that is written otherwise."""
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
            # An empty list of dims is none.
            is_written = bool(written.get(key)) if key == "dims" else key in written
            if is_written and key in tensor and written[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} "
                    f"but the model configuration specifies {key} {written[key]}"
                )


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the input with this name; None: there is none."""
    return _named(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration of the output with this name; None: there is none."""
    return _named(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the model may give any number of responses to a request."""
    if "model_transaction_policy" not in model_config:
        return False
    decoupled: bool = model_config["model_transaction_policy"]["decoupled"]
    return decoupled


def _named(model_config: dict[str, Any], role: str, name: str) -> dict[str, Any] | None:
    tensors: list[dict[str, Any]] = model_config[role] if role in model_config else []  # noqa: SIM401 - whatever has `in`, as on Triton
    return next((tensor for tensor in tensors if tensor["name"] == name), None)
