"""Requests' heads held against their model's configuration."""

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid.core.wire.messages import InferRequest, InferResponse, Payload
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.requests.entry import Entry, RequestState
from nereid_scheduler.versions.validation.request_validation import Validator
from tests.support.scheduler.samples import NoOwner, Tensor, head_of, model_of, no_response

OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: [-1] }'


def spec(name: str, dims: str, more: str = "", datatype: str = "FP32") -> str:
    return f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}] {more} }}'


def validator(
    *inputs: str, max_batch_size: int = 8, batching: str = "", backend: str = "python"
) -> Validator:
    text = f"max_batch_size: {max_batch_size} {' '.join(inputs)} {OUTPUT} {batching}"
    return Validator(model_of(text, backend=backend))


SHAPE_TENSOR = spec("B", "2", "is_shape_tensor: true", datatype="INT32")
TWO = validator(spec("A", "-1"), spec("B", "-1"))
FIXED = validator(spec("A", "16"))
PLAIN = validator(spec("A", "4"), max_batch_size=0)
OPTIONAL = validator(spec("A", "-1"), spec("B", "-1", "optional: true"), spec("C", "4"))
# Two of three may be left out, so that their number alone does not say which is missing.
LOOSE = validator(spec("A", "-1"), *(spec(name, "4", "optional: true") for name in "BC"))


def a(*shape: int, datatype: str = "FP32") -> Tensor:
    return ("A", datatype, shape)


def b(*shape: int) -> Tensor:
    return ("B", "FP32", shape)


def c(*shape: int) -> Tensor:
    return ("C", "FP32", shape)


def make_entry(checker: Validator, request: InferRequest, now_ns: int = 0) -> Entry:
    return checker.make_entry(request, no_response, NoOwner(), now_ns)


def text_of(checker: Validator, *inputs: Tensor, outputs: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidArgument) as caught:
        checker.check(head_of(inputs, outputs))
    assert not caught.value.accepted
    return caught.value.message


@pytest.mark.parametrize(
    ("checker", "inputs", "part"),
    [
        (TWO, [a(1, 2), a(1, 2)], "'A' already exists"),
        (TWO, [a(1, 2)], "expected 2 inputs but got 1"),
        (TWO, [], "missing required input(s) ['A','B']"),
        (TWO, [a(1, 2), b(1, 2), c(1, 2)], "expected 2 inputs but got 3"),
        (OPTIONAL, [a(1, 2)], "between 2 and 3 but got 1"),
        (LOOSE, [b(1, 4)], "missing required input(s) ['A']"),
        (LOOSE, [("X", "FP32", [1])], "unexpected inference input 'X'"),
        (TWO, [a(1, 2), c(1, 2)], "unexpected inference input 'C'"),
        (TWO, [a(1, 2), b()], "'B' has no shape"),
        (TWO, [a(1, 2), b(2, 2)], "'A' batch size does not match"),
        (TWO, [a(0, 2), b(1, 2)], "'A' batch size does not match"),
        (FIXED, [a(9, 16)], "batch-size must be <= 8"),
        (FIXED, [a(2**32 + 1, 16)], "batch-size must be <= 8"),
        (FIXED, [a(9, 15, datatype="INT8")], "batch-size must be <= 8"),
        (FIXED, [a(1, 15, datatype="INT8")], "data-type is 'INT8'"),
        (FIXED, [a(1, 16, datatype="FLOAT")], "data-type is '<invalid>'"),
        (FIXED, [a(1, 8)], "Expected [-1,16], got [1,8]. NOTE"),
        (FIXED, [a(1)], "Expected [-1,16], got [1]. NOTE"),
        (PLAIN, [a(1, 4)], "Expected [4], got [1,4]. "),
        (PLAIN, [a()], "Expected [4], got []. "),
        (TWO, [a(1, -1), b(1, 2)], "specified for input 'A' for model 'm', got [1,-1]"),
        (TWO, [a(1, 2), b(1, -2)], "specified for input 'B' for model 'm', got [1,-2]"),
        (FIXED, [a(-1, 16)], "specified for input 'A' for model 'm', got [-1,16]"),
        (
            TWO,
            [a(1, 2**62), b(1, 2)],
            f"byte size for tensor 'A' exceeds maximum size of {2**63 - 1}",
        ),
    ],
)
def test_refused_heads(checker: Validator, inputs: list[Tensor], part: str) -> None:
    """By a part of each text; the whole ones are recorded in tests/conformance."""
    assert part in text_of(checker, *inputs)


def test_a_zero_hides_no_huge_dimension() -> None:
    checker = validator(spec("A", "-1, -1"))
    assert text_of(checker, a(1, 0, 2**62)).startswith("byte size for tensor 'A' exceeds")


def test_huge_string_tensors_are_refused_too() -> None:
    checker = validator(spec("A", "-1, -1", datatype="STRING"))
    tensor = a(1, 2**62, 2**62, datatype="BYTES")
    text = f"element count for tensor 'A' exceeds maximum size of {2**63 - 1}"
    assert text_of(checker, tensor) == text


def test_unknown_outputs_come_before_missing_inputs() -> None:
    assert text_of(TWO, outputs=("Z", "Y", "Q")) == "unexpected inference output 'Q' for model 'm'"


def test_duplicate_inputs_come_before_unknown_outputs() -> None:
    assert "input 'A' already exists" in text_of(TWO, a(1, 1), a(1, 1), outputs=("Y", "Y"))
    assert "output 'Y' already exists" in text_of(TWO, a(1, 1), outputs=("Z", "Y", "Y", "Z"))


def test_errors_carry_the_request_id() -> None:
    with pytest.raises(InvalidArgument) as caught:
        TWO.check(head_of([a(1, 2)]), "r1")
    assert caught.value.message.startswith("[request id: r1] expected 2 inputs")


def test_a_damaged_head_is_an_internal_error() -> None:
    with pytest.raises(Internal):
        TWO.check(b"\xff\xff")


TEXTS = validator(spec("A", "2", datatype="STRING"))


@pytest.mark.parametrize(
    ("checker", "inputs", "batch_size", "sizes"),
    [
        (TWO, [a(3, 2), b(3, 5)], 3, (24, 60)),
        (PLAIN, [a(4)], 1, (16,)),
        (TWO, [a(2, 0), b(2, 1)], 2, (0, 8)),
        (TEXTS, [a(1, 2, datatype="BYTES")], 1, (None,)),
    ],
    ids=["batch dimension", "none", "no elements", "strings"],
)
def test_what_a_head_says(
    checker: Validator, inputs: list[Tensor], batch_size: int, sizes: tuple[int | None, ...]
) -> None:
    valid = checker.check(head_of(inputs))
    assert (valid.batch_size, valid.sizes) == (batch_size, sizes)
    assert valid.input_names == tuple(name for name, *_ in inputs)


class TestHeads:
    def test_a_reshaped_input_is_given_in_its_own_shape(self) -> None:
        checker = validator(spec("A", "1, -1", "reshape { shape: [-1] }"))
        assert checker.check(head_of([a(2, 1, 3)])).sizes == (24,)
        assert "Expected [-1,1,-1], got [2,3]" in text_of(checker, a(2, 3))

    def test_equal_heads_are_read_once(self) -> None:
        head = head_of([a(1, 7), b(1, 7)])
        assert TWO.check(head) is TWO.check(bytes(bytearray(head)))

    def test_remembered_heads_are_bounded(self) -> None:
        checker = Validator(model_of(f"{spec('A', '-1')} {OUTPUT} max_batch_size: 8"), max_heads=4)
        first = head_of([a(1, 1)])
        valid = checker.check(first)
        for width in range(2, 6):
            checker.check(head_of([a(1, width)]))
            assert len(checker._valid_heads) <= 4
        assert checker.check(first) is not valid
        output = "Y" * 5000
        wide = OUTPUT.replace('"Y"', f'"{output}"')
        checker = Validator(model_of(f"{spec('A', '-1')} {wide}"))
        long = head_of([a(1)], [output])
        assert checker.check(long) is not checker.check(long)


RAGGED = validator(spec("A", "-1", "allow_ragged_batch: true"))


def may_share(checker: Validator, first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether these requests may share a batch."""
    keys = {checker.check(head_of(inputs)).shape_key for inputs in (first, second)}
    return len(keys) == 1


@pytest.mark.parametrize(
    ("checker", "first", "second", "shared"),
    [
        (TWO, [a(1, 2), b(1, 3)], [a(4, 2), b(4, 3)], True),
        (TWO, [a(1, 2), b(1, 3)], [a(1, 2), b(1, 4)], False),
        (TWO, [a(1, 2), b(1, 3)], [b(1, 3), a(1, 2)], True),
        (RAGGED, [a(1, 2)], [a(1, 3)], True),
        (LOOSE, [a(1, 2), b(1, 4)], [a(1, 2), c(1, 4)], False),
        (LOOSE, [a(1, 2), b(1, 4)], [a(1, 2)], False),
        (LOOSE, [a(1, 2), b(1, 4)], [b(2, 4), a(2, 2)], True),
    ],
    ids=["batch sizes", "dimensions", "order", "ragged", "optional", "missing", "optional order"],
)
def test_which_requests_may_share_a_batch(
    checker: Validator, first: list[Tensor], second: list[Tensor], shared: bool
) -> None:
    assert may_share(checker, first, second) is shared


class TestSharing:
    def test_sizes_that_are_padded_to_the_same_may_differ(self) -> None:
        padding = 'parameters { key: "padding" value { string_value: "A[0] B[0]: 4 8" } }'
        checker = validator(spec("A", "-1"), spec("B", "-1"), padding)
        assert may_share(checker, [a(1, 1), b(1, 1)], [a(2, 4), b(2, 4)])
        assert not may_share(checker, [a(1, 1), b(1, 1)], [a(1, 5), b(1, 5)])
        assert not may_share(checker, [a(1, 9), b(1, 9)], [a(1, 10), b(1, 10)])
        assert "padded together" in text_of(checker, a(1, 1), b(1, 2))

    def test_with_a_budget_of_tokens_all_sizes_may_share_a_batch(self) -> None:
        text = 'parameters { key: "padding" value { string_value: "A[0] B[0]: 4 8" } }'
        tokens = 'parameters { key: "max_batch_tokens" value { string_value: "64" } }'
        checker = validator(
            spec("A", "-1"), spec("B", "-1, 2"), text, tokens, "dynamic_batching { }"
        )
        assert may_share(checker, [a(1, 1), b(1, 1, 2)], [a(2, 9), b(2, 9, 2)])
        assert checker.check(head_of([b(2, 9, 2), a(2, 9)])).length == 9
        assert "padded together" in text_of(checker, a(1, 1), b(1, 2, 2))

    def test_elements_are_counted_with_and_without_padding(self) -> None:
        padding = 'parameters { key: "padding" value { string_value: "A[0]: 4 8" } }'
        padded = validator(spec("A", "-1"), spec("B", "-1"), padding).check(
            head_of([a(2, 3), b(2, 1)])
        )
        assert (padded.elements, padded.padded_elements) == (8, 10)
        other = validator(spec("A", "-1")).check(head_of([a(2, 3)]))
        assert (other.elements, other.padded_elements) == (0, 0)

    def test_shape_tensors_must_be_equal_in_content(self) -> None:
        checker = validator(spec("A", "-1"), SHAPE_TENSOR, backend="tensorrt")
        head = head_of([a(1, 2), ("B", "INT32", [2])])
        entries = [
            checker.make_entry(
                InferRequest(1, head, [bytes(8), content]), no_response, NoOwner(), 0
            )
            for content in (b"\1\0\0\0\2\0\0\0", b"\1\0\0\0\2\0\0\0", b"\1\0\0\0\3\0\0\0")
        ]
        assert entries[0].key == entries[1].key
        assert entries[0].key != entries[2].key

    def test_shape_tensors_alone_are_a_batch_of_one(self) -> None:
        checker = validator(SHAPE_TENSOR, backend="tensorrt")
        assert checker.check(head_of([("B", "INT32", [2])])).batch_size == 1


class TestSizes:
    def refused(
        self, checker: Validator, inputs: list[Tensor], payloads: list[Payload]
    ) -> NereidError:
        with pytest.raises(NereidError) as caught:
            checker.check_sizes(checker.check(head_of(inputs)), payloads, "r")
        return caught.value

    def test_inline(self) -> None:
        error = self.refused(TWO, [a(1, 2), b(1, 2)], [bytes(8), bytes(4)])
        assert error.message == (
            "[request id: r] input byte size mismatch for input 'B' for model 'm'. "
            "Expected 8, got 4"
        )
        assert error.code == InvalidArgument.code

    def test_shared_memory(self) -> None:
        error = self.refused(FIXED, [a(1, 16)], [SharedMemory("segment", 0, 60)])
        assert error.message.endswith("Expected 64, got 60")
        valid = FIXED.check(head_of([a(1, 16)]))
        FIXED.check_sizes(valid, [SharedMemory("segment", 0, 64)])

    def test_strings_are_not_looked_into(self) -> None:
        checker = validator(spec("A", "2", datatype="STRING"))
        checker.check_sizes(checker.check(head_of([a(1, 2, datatype="BYTES")])), [b"?"])

    def test_a_tensor_too_few(self) -> None:
        assert self.refused(FIXED, [a(1, 16)], []).code == Internal.code

    def test_a_batch_of_none(self) -> None:
        error = self.refused(FIXED, [a(0, 16)], [b""])
        assert error.message.endswith("Expected 64, got 0")
        error = self.refused(FIXED, [a(0, 16)], [bytes(64)])
        assert error.message == (
            "[request id: r] inference request batch-size must be >= 1 for 'm'"
        )


class TestAccept:
    BATCHING = """dynamic_batching {
      priority_levels: 3 default_priority_level: 2
      default_queue_policy { default_timeout_microseconds: 50 allow_timeout_override: true }
      priority_queue_policy { key: 1 value { default_timeout_microseconds: 20 } }
      priority_queue_policy { key: 3 value { allow_timeout_override: true } }
    }"""

    def request(self, **fields: object) -> InferRequest:
        request = InferRequest(7, head_of([a(1, 16)]), [bytes(64)])
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    def test_builds_an_entry(self) -> None:
        request = self.request(deadline=2.5)

        def on_response(response: InferResponse) -> None: ...

        entry = FIXED.make_entry(request, on_response, NoOwner(), now_ns=9)
        assert entry.request is request
        assert entry.on_response is on_response
        assert entry.valid is FIXED.check(request.head)
        assert (entry.received_ns, entry.level, entry.retries) == (9, 1, 0)
        assert (entry.timeout_ns, entry.deadline_ns) == (None, 2_500_000_000)
        assert entry.state is RequestState.RECEIVED

    def test_refuses(self) -> None:
        with pytest.raises(InvalidArgument, match=r"^.request id: r9. input byte size mismatch"):
            FIXED.make_entry(
                self.request(payloads=[b""], request_id="r9"), no_response, NoOwner(), 0
            )

    @pytest.mark.parametrize(
        ("priority", "timeout_us", "level", "expected_us"),
        [
            (0, 0, 2, 50),
            (4, 0, 2, 50),
            (2, 30, 2, 30),
            (2, 60, 2, 50),
            (1, 10, 1, 20),
            (3, 10, 3, None),
        ],
        ids=["default", "out of range", "shorter", "longer", "no override", "no default"],
    )
    def test_level_and_timeout(
        self, priority: int, timeout_us: int, level: int, expected_us: int | None
    ) -> None:
        checker = validator(spec("A", "16"), batching=self.BATCHING)
        request = self.request(priority=priority, timeout_us=timeout_us)
        entry = make_entry(checker, request, now_ns=1000)
        assert entry.level == level
        assert entry.timeout_ns == (None if expected_us is None else 1000 + expected_us * 1000)

    def test_without_priorities_there_is_one_level(self) -> None:
        checker = validator(spec("A", "16"), batching="dynamic_batching { }")
        entry = checker.make_entry(
            self.request(priority=5, timeout_us=5), no_response, NoOwner(), now_ns=0
        )
        assert (entry.level, entry.timeout_ns) == (1, None)


def parameter(name: str, value: str) -> str:
    return f"parameters {{ key: 'default.{name}' value {{ string_value: '{value}' }} }}"


WITH_DEFAULTS = validator(
    spec("A", "-1"),
    spec("B", "2", "optional: true"),
    spec("C", "2", "optional: true", datatype="STRING"),
    batching=parameter("B", "[1, 2]") + parameter("C", '"x"'),
)
B_ROW = b"\0\0\x80\x3f\0\0\0\x40"
C_ROW = b"\1\0\0\0x" * 2


def test_inputs_that_are_not_sent_have_their_defaults_in_each_row() -> None:
    bytes_of_a = bytes(2 * 3 * 4)
    request = InferRequest(1, head_of([a(2, 3)]), [bytes_of_a])
    entry = make_entry(WITH_DEFAULTS, request)
    assert request.payloads == [bytes_of_a, B_ROW * 2, C_ROW * 2]
    message = kserve_pb2.ModelInferRequest.FromString(request.head)
    described = [(tensor.name, tensor.datatype, [*tensor.shape]) for tensor in message.inputs]
    assert described == [("A", "FP32", [2, 3]), ("B", "FP32", [2, 2]), ("C", "BYTES", [2, 2])]
    assert entry.valid.input_names == ("A", "B", "C")
    # The request can share a batch with one that has sent all.
    whole = head_of([a(1, 3), b(1, 2), ("C", "BYTES", (1, 2))])
    other = make_entry(WITH_DEFAULTS, InferRequest(2, whole, [bytes(12), bytes(8), C_ROW]))
    assert other.key == entry.key
    # What a version has completed is complete.
    again = make_entry(WITH_DEFAULTS, request)
    assert len(again.request.payloads) == 3


def test_only_omitted_inputs_have_their_defaults() -> None:
    request = InferRequest(1, head_of([a(1, 1), b(1, 2)]), [bytes(4), bytes(8)])
    make_entry(WITH_DEFAULTS, request)
    assert request.payloads == [bytes(4), bytes(8), C_ROW]


def test_a_request_with_defaults_is_checked_as_it_came() -> None:
    request = InferRequest(1, head_of([a(1, 1)]), [bytes(5)])
    with pytest.raises(InvalidArgument, match="Expected 4, got 5"):
        make_entry(WITH_DEFAULTS, request)
    with pytest.raises(InvalidArgument, match="batch-size must be >= 1"):
        make_entry(WITH_DEFAULTS, InferRequest(1, head_of([a(0, 1)]), [bytes(4)]))


def test_defaults_without_a_batch_dimension() -> None:
    checker = validator(
        spec("B", "2", "optional: true"), batching=parameter("B", "[1, 2]"), max_batch_size=0
    )
    request = InferRequest(1, head_of([]), [])
    make_entry(checker, request)
    assert request.payloads == [B_ROW]
