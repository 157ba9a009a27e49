"""The model for MLServer, by its codec for NumPy. Runs inside MLServer's worker process."""

from batched_session import BatchedSession
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):  # type: ignore[misc]  # a package of the peer's
    async def load(self) -> bool:
        self.session = BatchedSession()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feed = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        arrays = self.session.run(feed)
        outputs = [
            NumpyCodec.encode_output(name, array)
            for name, array in zip(self.session.outputs, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
