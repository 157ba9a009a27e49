"""What functions get and return for tensors of text."""

import numpy as np

from nereid.app.tensor import Tensor
from nereid.app.worker import Outputs, input_value


def test_bytes_that_are_no_utf_8_harm_no_other_request_and_come_back_as_they_were() -> None:
    tensor = Tensor(str, -1)
    array = np.array([[b"caf\xc3\xa9"], [b"\xff\x00"]], object)
    given = input_value(array, tensor)
    assert given.tolist() == [["café"], ["\udcff\x00"]]
    returned = Outputs("m", {"y": tensor}).arrays(given, 2)
    assert returned["y"].tolist() == array.tolist()
