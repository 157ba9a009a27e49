"""Requests against a model's configuration: the one place where an Entry is built.

Reads heads and payload sizes, never a tensor's content. The texts are Triton's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.messages import Answer, InferRequest, Payload
    from nereid.model_config import ModelConfig
    from services.scheduler.entry import Entry, ValidHead


class Validator:
    """Checks the requests of one model version. Raises NereidErrors."""

    def __init__(self, config: ModelConfig) -> None:
        raise NotImplementedError

    def accept(
        self, request: InferRequest, on_answer: Callable[[Answer], None], now_ns: int
    ) -> Entry:
        """The entry for a request: head and sizes checked, priority level and queue timeout set."""
        raise NotImplementedError

    def check(self, head: bytes, request_id: str = "") -> ValidHead:
        raise NotImplementedError

    def check_sizes(self, valid: ValidHead, payloads: Sequence[Payload], request_id: str) -> None:
        raise NotImplementedError
