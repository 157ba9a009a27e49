"""What fuzzing has found, so that it is not found again: inputs by target."""

from __future__ import annotations

FOUND: dict[str, list[bytes]] = {
    # The answer to HEAD has no content, also where the request is refused.
    "http1": [
        b"\x02HEAD /v2\nHost: x\r\n\r\n{}",
        # Empty lines before a head were remembered as the head of any further request.
        (
            b"\x0b\r\n\r\nPOST /2/mom/infer HTTP/1.1\r\nUseO-Agent: seeD\r\n"
            b"Content-Length: 1\r\n\r\n0\r\n\r\n\xbcOST xubc"
        ),
    ],
    # An enum's number of more than 32 bits is no ParseError of protobuf's.
    "config_text": [b"input { data_type: 18446744073709551616 }"],
    # A fault that quotes broken text cannot be written to a frame.
    "infer_json": [
        b'\xff\xff{"inputs":[],"parameters":{"\xc2":[]}}',
        b'\xff\xff{"inputs":[],"parameters":{"\\ud800":[]}}',
    ],
    # hpack reads any number of table size updates at a block's start, Nereid's decoder two.
    "header_blocks": [b"\x05\x3d\x3d\x3d\x3d\x83"],
}
