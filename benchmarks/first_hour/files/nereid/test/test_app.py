import numpy as np
from app import double


def test_double(nereid_mesh):
    assert nereid_mesh.client["double"](np.ones(4, "float32")).sum() == 8
