"""Frames that are built whole."""

from __future__ import annotations

from nereid.rpc.http2.frames import header_frames


def test_long_blocks_go_out_in_pieces() -> None:
    frames = header_frames(3, b"x" * 25, 1, 10)
    assert frames == (
        b"\x00\x00\x0a\x01\x01\x00\x00\x00\x03"
        + b"x" * 10
        + b"\x00\x00\x0a\x09\x00\x00\x00\x00\x03"
        + b"x" * 10
        + b"\x00\x00\x05\x09\x04\x00\x00\x00\x03"
        + b"x" * 5
    )
