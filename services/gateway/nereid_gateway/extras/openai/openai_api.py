"""Construction of a gateway's API of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nereid_gateway.extras.openai.bodies import BodyReader
from nereid_gateway.extras.openai.calls import TextServices
from nereid_gateway.extras.openai.endpoints.audio import OpenAiAudio
from nereid_gateway.extras.openai.endpoints.chat import OpenAiChat
from nereid_gateway.extras.openai.endpoints.classification import OpenAiClassification
from nereid_gateway.extras.openai.endpoints.cohere_embeddings import OpenAiCohereEmbeddings
from nereid_gateway.extras.openai.endpoints.completions import OpenAiCompletions
from nereid_gateway.extras.openai.endpoints.decisions import OpenAiDecisions
from nereid_gateway.extras.openai.endpoints.embeddings import OpenAiEmbeddings
from nereid_gateway.extras.openai.endpoints.messages import OpenAiMessages
from nereid_gateway.extras.openai.endpoints.model_management import OpenAiModelManagement
from nereid_gateway.extras.openai.endpoints.models import OpenAiModels
from nereid_gateway.extras.openai.endpoints.ranking import OpenAiRanking
from nereid_gateway.extras.openai.endpoints.responses import OpenAiResponses
from nereid_gateway.extras.openai.endpoints.tokens import OpenAiTokens
from nereid_gateway.extras.openai.errors import set_error_form
from nereid_gateway.extras.openai.generation.generator import Generator
from nereid_gateway.extras.openai.metrics import CallMetrics
from nereid_gateway.extras.openai.texts.chat_templates import TemplateRenderer
from nereid_gateway.extras.openai.texts.rows import RowSubmission
from nereid_gateway.extras.openai.texts.text_models import TextModels
from nereid_gateway.extras.openai.work_pool import WorkPool
from nereid_gateway.fronts.http.submission import InferSubmission

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.content_coding import ContentCoder
    from nereid_gateway.server.header_forwarding import HeaderForwarding

_MAX_THREADS: Final = 4


class OpenAiApi:
    """The API of texts of one gateway: its endpoints, its metrics, and the form of its errors."""

    set_error_form = staticmethod(set_error_form)

    def __init__(
        self, data_plane: DataPlane, coder: ContentCoder, forwarding: HeaderForwarding | None
    ) -> None:
        self._pool = WorkPool(min(_MAX_THREADS, os.cpu_count() or 1))
        self._metrics = CallMetrics()
        models = TextModels(data_plane.control, self._pool)
        self.models_changed = models.expire_all
        submission = InferSubmission(data_plane, forwarding)
        services = TextServices(
            BodyReader(data_plane.decoding, coder),
            models,
            RowSubmission(submission, self._pool),
            self._pool,
            self._metrics,
            TemplateRenderer(data_plane),
        )
        generator = Generator(services, submission)
        # They have the handlers of the routes.
        self.endpoints = (
            OpenAiModels(services, data_plane),
            OpenAiModelManagement(services, data_plane.control),
            OpenAiEmbeddings(services),
            OpenAiCohereEmbeddings(services),
            OpenAiRanking(services),
            OpenAiClassification(services),
            OpenAiTokens(services),
            OpenAiDecisions(services),
            OpenAiCompletions(services, generator),
            OpenAiChat(services, generator),
            OpenAiResponses(services, generator),
            OpenAiMessages(services, generator),
            OpenAiAudio(services),
        )

    def write_metrics(self, page: Page) -> None:
        """Add the series of the API's calls to a page."""
        self._metrics.write(page)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()
