"""Model for MLServer, by its codec for NumPy. Runs inside MLServer's worker process."""

from batched_session import BatchedSession
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):  # type: ignore[misc]  # a package of the peer's
    """Model as MLServer calls it."""

    async def load(self) -> bool:
        """Open the session."""
        self.session = BatchedSession()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run a request."""
        feed = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        arrays = self.session.run(feed)
        outputs = [
            NumpyCodec.encode_output(name, array)
            for name, array in zip(self.session.outputs, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
