import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton


@batch
def double(x):
    return [x * 2]


def bind(triton):
    triton.bind(
        model_name="double",
        infer_func=double,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="output", dtype=np.float32, shape=(-1,))],
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
