"""Construction of a gateway's API of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nereid_gateway.extras.openai.bodies import BodyReader
from nereid_gateway.extras.openai.calls import TextServices
from nereid_gateway.extras.openai.endpoints.chat import OpenAiChat
from nereid_gateway.extras.openai.endpoints.classification import OpenAiClassification
from nereid_gateway.extras.openai.endpoints.completions import OpenAiCompletions
from nereid_gateway.extras.openai.endpoints.embeddings import OpenAiEmbeddings
from nereid_gateway.extras.openai.endpoints.messages import OpenAiMessages
from nereid_gateway.extras.openai.endpoints.models import OpenAiModels
from nereid_gateway.extras.openai.endpoints.ranking import OpenAiRanking
from nereid_gateway.extras.openai.endpoints.responses import OpenAiResponses
from nereid_gateway.extras.openai.endpoints.tokens import OpenAiTokens
from nereid_gateway.extras.openai.errors import set_error_form
from nereid_gateway.extras.openai.generation.chat_templates import TemplateRenderer
from nereid_gateway.extras.openai.generation.generator import Generator
from nereid_gateway.extras.openai.metrics import CallMetrics
from nereid_gateway.extras.openai.texts.rows import RowSubmission
from nereid_gateway.extras.openai.texts.text_models import TextModels
from nereid_gateway.extras.openai.work_pool import WorkPool
from nereid_gateway.fronts.http.submission import InferSubmission

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.content_coding import ContentCoder
    from nereid_gateway.server.header_forwarding import HeaderForwarding
    from nereid_gateway.server.ordered_responses import Dispatch

_MAX_THREADS: Final = 4


class OpenAiApi:
    """The API of texts of one gateway: its endpoints, its metrics, and the form of its errors."""

    def __init__(
        self, data_plane: DataPlane, coder: ContentCoder, forwarding: HeaderForwarding | None
    ) -> None:
        self._pool = WorkPool(min(_MAX_THREADS, os.cpu_count() or 1))
        self._metrics = CallMetrics()
        submission = InferSubmission(data_plane, forwarding)
        services = TextServices(
            BodyReader(data_plane.decoding, coder),
            TextModels(data_plane.control, self._pool),
            RowSubmission(submission, self._pool),
            self._pool,
            self._metrics,
        )
        generator = Generator(services, submission, TemplateRenderer(data_plane))
        # They have the handlers of the routes.
        self.endpoints = (
            OpenAiModels(services, data_plane.control),
            OpenAiEmbeddings(services),
            OpenAiRanking(services),
            OpenAiClassification(services),
            OpenAiTokens(services),
            OpenAiCompletions(services, generator),
            OpenAiChat(services, generator),
            OpenAiResponses(services, generator),
            OpenAiMessages(services, generator),
        )

    def with_error_forms(
        self, dispatch: Dispatch, allocate_body: AllocateBody
    ) -> tuple[Dispatch, AllocateBody]:
        """Return the steps of a port that give errors of this API's calls its form."""
        forms = _ErrorForms(dispatch, allocate_body)
        return forms, forms.allocate_body

    def write_metrics(self, page: Page) -> None:
        """Add the series of the API's calls to a page."""
        self._metrics.write(page)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()


class _ErrorForms:
    """First step of the HTTP port: errors of the API's calls get its form, whoever raises them."""

    def __init__(self, dispatch: Dispatch, allocate_body: AllocateBody) -> None:
        self._dispatch = dispatch
        self._allocate_body = allocate_body

    def __call__(self, call: HttpCall) -> None:
        """Dispatch a call."""
        if call.encode_error is None:
            set_error_form(call)
        self._dispatch(call)

    def allocate_body(self, call: HttpCall, size_bytes: int) -> BodyBuffer | None:
        """Return a buffer or None, as the next step does."""
        set_error_form(call)
        return self._allocate_body(call, size_bytes)
