"""The pipe's framing."""

from nereid_perf.measurement import LoadLevel
from nereid_perf.workers.messages import Connect, Connected, Decoder, Stop, encoded


def test_messages_come_out_however_they_are_cut() -> None:
    sent = [Connect(LoadLevel("rate", 3)), Connected(), Stop(1.5)]
    data = b"".join(map(encoded, sent))
    for size in (1, 7, len(data)):
        decoder = Decoder()
        received: list[object] = []
        for at in range(0, len(data), size):
            received += decoder.feed(data[at : at + size])
        assert received == sent
