"""Where Nereid differs from Triton on purpose. docs/compatibility.md explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Difference:
    """One decision. rows: names, or beginnings of names with a star; ask: Triton survives them."""

    title: str
    rows: tuple[str, ...]
    ask: bool = True

    def covers(self, name: str) -> bool:
        return any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each for each in self.rows
        )


DIFFERENCES: Final = (
    Difference(
        "Shapes too large for memory are refused",
        tuple(
            f"http/shape/{kind}-[1, {size}]"
            for kind in ("batched", "plain", "fixed", "bytes")
            for size in ("1099511627776", "9223372036854775807")
        ),
        ask=False,
    ),
    Difference(
        "A batch of zero is refused",
        (
            *("http/shape/batched-[0, 0]", "http/shape/empty-batched-[0, 0]"),
            "grpc/shape/batched-(0, 6)",
        ),
    ),
    Difference(
        "Every HTTP request gets a response",
        (
            *("http/lookup/metadata/space", "http/lookup/ready/space", "http/lookup/config/space"),
            *("http/lookup/infer/space", "http/routing/target/empty", "shared-memory/name-é"),
            "http/encoding/chunked-extension",
        ),
    ),
    Difference(
        "Names in paths may be quoted",
        (
            *(
                f"http/lookup/{route}/escaped*"
                for route in ("metadata", "ready", "config", "infer")
            ),
            "shared-memory/name-a%20b",
            *("explicit/load-%2e%2e", "explicit/load-..%2fmodels", "explicit/load-a%2fb"),
        ),
    ),
    Difference("A server that ends is neither live nor ready", ("drain/probes/*",)),
    Difference("New HTTP connections are served while a server ends", ("drain/new-http/*",)),
    Difference(
        "A server that ends refuses requests as unavailable, and ends well",
        ("drain/refused/*", "drain/exit"),
    ),
    Difference(
        "NUL characters do not end an id",
        ("http/json/id-nul", "grpc/inputs/id-a\0b", "grpc/inputs/id-a\0b-bad"),
    ),
    Difference(
        "Of a JSON member that comes twice the last counts",
        ("http/json/inputs-twice",),
    ),
    Difference(
        "Ids that are no UTF-8 text are returned with a question mark",
        ("http/json/bad-utf8", "http/json/surrogate"),
    ),
    Difference(
        "An output that is requested twice is refused",
        (
            *("http/outputs/twice*", "grpc/outputs/twice", "grpc/outputs/plain-then-class"),
            *("grpc/outputs/class-then-plain", "grpc/outputs/class-then-class"),
        ),
    ),
    Difference(
        "Keys of shared memory are checked",
        (
            *('shared-memory/key-""', "shared-memory/key-/"),
            "shared-memory/key-/triton_python_backend_shm_region_1",
        ),
    ),
    Difference("A key may have several regions", ("shared-memory/same-key",)),
    Difference("Health of an unknown service is NOT_FOUND", ("grpc/control/health-of-service",)),
    Difference("Half a surrogate pair is refused", ("http/json/data-low-surrogate",)),
    Difference(
        "An error of a raw request names the model's input",
        (
            "http/binary/header-0",
            *("http/binary/header-0x10", "http/raw/ints-cut", "http/raw/scalar-short"),
            *("http/raw/scalar-long", "http/raw/fixed-short"),
        ),
    ),
    Difference(
        "A header length that is no number is named as such",
        (
            *("http/binary/header-x", "http/binary/header-"),
            *("http/binary/header-99999999999", "http/binary/header-99999999999999999999"),
        ),
    ),
    Difference(
        "Lists in JSON are nested at most 99 deep",
        ("http/data/form-too-deep*", "http/data/form-bytes-too-deep*"),
    ),
    Difference(
        "Too few elements in JSON have a text of their own",
        (
            *(f"http/json/data-{data}" for data in ("[]", "[1]", "[[]]")),
            *(f"http/data/form-{form}" for form in ("few", "none", "nested-few")),
            *(f"http/shape/{kind}-[9, 1]" for kind in ("batched", "plain", "fixed")),
            "http/statistics/counts",
        ),
    ),
    Difference("A model cannot be loaded without a name", ("explicit/grpc-load-",)),
    Difference("Model names that lead out of the repository are refused", ("explicit/load-..",)),
    Difference("Log settings change all together or not at all", ("logging/good-and-bad",)),
    Difference("Log levels out of range are refused", ("logging/log_verbose_level-4294967296",)),
    Difference(
        "A value for `ready` that is no boolean is named as such",
        tuple(
            f"repository/index-ready-{value}"
            for value in (
                "0",
                "1",
                "-1",
                "1.5",
                '"x"',
                '""',
                '"1"',
                "null",
                "[]",
                "{}",
                "[1]",
                '["x"]',
                "4294967296",
            )
        ),
    ),
    Difference("NaN is never the best class", ("http/classification/nan",)),
    Difference(
        "Negative dimensions are named as such",
        (
            *(
                "grpc/shape/fixed-(1, -1)",
                "grpc/shape/batched-(-1, 6)",
                "grpc/shape/batched-(-1, -6)",
            ),
            *(
                f"grpc/shape/{kind}-(1, -9223372036854775808)"
                for kind in ("batched", "plain", "fixed", "bytes")
            ),
        ),
    ),
    Difference(
        "Of two errors in one request the other may be reported",
        (
            *("grpc/shape/bytes-()", "grpc/raw/several-swapped", "http/shape/bytes-[]"),
            *(f"http/shape/no-elements-{each}-[]" for each in ("string", "wrong", "object")),
        ),
    ),
    Difference("An output that a model returns twice is sent twice", ("python/responses/twice",)),
    Difference(
        "A calling model gets the code of an error",
        ("python/bls/error-code", "python/bls/error-given"),
    ),
    Difference("Errors between responses reach the calling model", ("python/bls/decoupled-error",)),
    Difference(
        "An unsupported flag is named",
        ("python/streams/wrong-flags", "python/streams/wrong-flags-final"),
    ),
    Difference("numpy's strings among objects are strings", ("python/responses/text-numpy*",)),
    Difference(
        "An exception's text may have half a surrogate pair",
        ("python/responses/raise-surrogate*",),
        ask=False,
    ),
    Difference(
        "Python models that cannot work are refused at load",
        (
            *("python/completion/index", "python/completion/broken_no_class-load"),
            "python/completion/broken_no_execute-*",
        ),
    ),
    Difference(
        "An ensemble ends when the wanted outputs are there",
        ("ensemble/infer/two_ends-http-output",),
    ),
    Difference(
        "Inputs of ensembles are required unless optional", ("ensemble/infer/maybe-of-other",)
    ),
    Difference(
        "The reason why an ensemble cannot be loaded is given",
        tuple(
            f"ensemble/broken/{each}"
            for each in ("wrong_missing", "wrong_circle", "wrong_circle_2", "index")
        ),
    ),
    Difference(
        "A failed request of an ensemble counts once",
        (
            "ensemble/statistics/chain_flat",
            "ensemble/statistics/nested",
            "ensemble/statistics/told",
        ),
    ),
    Difference(
        "A malformed message ends its stream with an error",
        ("grpc/stream/garbage*", "grpc/stream/good-garbage*"),
    ),
    Difference(
        "A correlation ID is of the kind of its control tensor",
        ("sequence/kinds/*",),
    ),
    Difference(
        "A text of any length fits a control tensor",
        (
            *("sequence/controls/texts*", "sequence/controls/slots-text", "sequence/streams/texts"),
            *(
                *(f"sequence/ids/text-{each}" for each in ("number", "space", "quote")),
                *(f"sequence/ids/text-{each}-http" for each in ("number", "space", "quote")),
            ),
            *("sequence/ensembles/through_texts", "sequence/bls/texts"),
        ),
    ),
    Difference(
        "A generate request may belong to a sequence",
        tuple(
            f"sequence/generate/{kind}-{name}"
            for kind in ("generate", "generate_stream")
            for name in (
                "direct",
                "oldest",
                "stream",
                "through_direct",
                "members",
                "no-start",
                "negative",
            )
        ),
    ),
)


def difference_of(name: str) -> Difference | None:
    """The decision that a row is about."""
    return next((each for each in DIFFERENCES if each.covers(name)), None)
