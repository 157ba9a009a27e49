"""The page's pure modules, in the browser that runs them: what people copy into shells, tensors as
text and as bytes, server-sent events, merge patches.
"""

from __future__ import annotations

import ast
import base64
import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf import json_format

from nereid.pb import kserve_pb2
from tests.support.console.browser import opened
from tests.support.console.facts_server import FactsServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TARGET = {
    "origin": "http://localhost:8000",
    "host": "localhost:8000",
    "grpc": "localhost:8001",
    "secure": False,
    "header": None,
}
NASTY = [
    "it's",
    'a "quoted" text',
    "$(touch pwned) `touch pwned` $HOME ${IFS}",
    "back\\slash \\n \\'",
    "line\nend\rtab\t nul\x00 bell\x07",
    "!! !$ %s {} [] * ? ~ # & ; | < >",
    "EOF\nEND_OF_BODY",
    "é€😀\u2028\u202e",
    "'",
    "''''",
    "-d @/etc/passwd",
    "",
    "<script>alert(1)</script>",
]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with FactsServer.running() as site, opened(browser, site.origin) as watched:
        watched.page.goto(f"{site.origin}/console")
        yield watched.page


def call(page: Page, module: str, expression: str, *arguments: Any) -> Any:
    """The value of an expression of a module (m) and arguments (a)."""
    script = f"const m = await import('/console/static/{module}'); return {expression};"
    return page.evaluate(f"async (a) => {{ {script} }}", list(arguments))


def request(values: list[str], model: str = "model", **more: Any) -> dict[str, Any]:
    tensor = {"name": values[0], "datatype": "BYTES", "shape": [len(values)], "values": values}
    return {"model": model, "version": "", "inputs": [tensor], "parameters": {}, **more}


def words(code: str, program: str, folder: Path, shell: str = "bash") -> list[str]:
    """The arguments with which a shell runs a program, and its standard input as the last."""
    script = folder.with_suffix(".sh")
    script.write_text(f"{program}() {{ printf '%s\\0' \"$@\"; cat; }}\n{code}")
    ran = subprocess.run(
        [shell, script],
        input=b"",
        capture_output=True,
        cwd=folder,
        timeout=30,
        check=True,
    )
    assert ran.stderr == b""
    assert list(folder.iterdir()) == []
    return ran.stdout.decode().split("\0")


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_sees_one_word(page: Page, tmp_path: Path, shell: str) -> None:
    # No argument can have the character 0.
    for text in (each.replace("\x00", "") for each in NASTY):
        quoted = call(page, "snippets.js", "m.shellQuote(a[0])", text)
        assert words(f"show {quoted}", "show", tmp_path, shell)[0] == text


def test_the_body_of_curl_is_the_request(page: Page, tmp_path: Path) -> None:
    parameters = {"it's": "$(id)", "n": 1, "f": 0.5, "b": True}
    for model in ("it's$(id)", "-x", "a;b&c|d"):
        given = request(NASTY, model, parameters=parameters)
        code = call(page, "snippets.js", "m.curl(a[0], [], a[1]).text", given, TARGET)
        seen = words(code, "curl", tmp_path)
        # As encodeURIComponent() quotes.
        quoted = urllib.parse.quote(model, safe="!~*'()")
        assert f"http://localhost:8000/v2/models/{quoted}/infer" in seen
        body = json.loads(seen[seen.index("--data-raw") + 1])
        assert body["inputs"][0]["data"] == NASTY
        assert body["inputs"][0]["name"] == NASTY[0]
        assert body["parameters"] == parameters


def test_a_large_body_goes_by_standard_input(page: Page, tmp_path: Path) -> None:
    values = [*NASTY, "x" * 200_000]
    code = call(page, "snippets.js", "m.curl(a[0], [], a[1]).text", request(values), TARGET)
    *arguments, body = words(code, "curl", tmp_path)
    assert arguments[-2:] == ["--data-binary", "@-"]
    assert json.loads(body)["inputs"][0]["data"] == values
    code = call(page, "snippets.js", "m.grpcurl(a[0], [], a[1]).text", request(values), TARGET)
    body = words(code, "grpcurl", tmp_path)[-1]
    message = json_format.Parse(body, kserve_pb2.ModelInferRequest())
    assert [each.decode() for each in message.inputs[0].contents.bytes_contents] == values


def test_what_no_command_can_say_is_not_made_up(page: Page) -> None:
    for model in ("a/b", ".", ".."):
        text, note = call(
            page,
            "snippets.js",
            "Object.values(m.curl(a[0], [], a[1]))",
            request(["x"], model),
            TARGET,
        )
        assert text is None
        assert "gRPC" in note
    half = [{"name": "OUTPUT0", "datatype": "FP16"}]
    text, _ = call(
        page, "snippets.js", "Object.values(m.curl(a[0], a[2], a[1]))", request(["x"]), TARGET, half
    )
    assert text is None


def test_the_key_is_taken_from_the_environment(page: Page, tmp_path: Path) -> None:
    for header in (
        {"name": "Authorization", "prefix": "Bearer ", "value": "secret"},
        {"name": "x-pass", "prefix": "", "value": "secret"},
    ):
        target = {**TARGET, "header": header}
        for kind in ("curl", "grpcurl"):
            code = call(
                page, "snippets.js", f"m.{kind}(a[0], [], a[1]).text", request(["x"]), target
            )
            assert "secret" not in code
            seen = words(f"NEREID_KEY=1234\n{code}", kind, tmp_path)
            assert f"{header['name']}: {header['prefix']}1234" in seen
        code = call(
            page, "snippets.js", "m.python(a[0], [], a[1], 'http').text", request(["x"]), target
        )
        assert 'os.environ["NEREID_KEY"]' in code


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_python_has_the_values(page: Page, protocol: str) -> None:
    given = request(NASTY, "model", version="3", parameters={"deep": "it's", "flag": True, "n": 2})
    outputs = [{"name": 'out"put', "datatype": "BYTES"}]
    script = "m.python(a[0], a[2], a[1], a[3]).text"
    code = call(page, "snippets.js", script, given, TARGET, outputs, protocol)
    tree = ast.parse(code)
    literals = [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    for text in [*NASTY, 'out"put', "model", "3", "it's"]:
        assert text in literals


def test_grpcurl_has_each_datatype(page: Page, tmp_path: Path) -> None:
    for datatype, values in {
        "BOOL": [True, False],
        "INT8": [-1, 2],
        "UINT32": [1, 4294967295],
        "FP32": [0.5, -2.0],
        "FP64": [0.1, 2.0],
        "FP16": [0.5, 65504.0],
        "BF16": [1.0, -3.0],
    }.items():
        tensor = {"name": "x", "datatype": datatype, "shape": [2], "values": values}
        given = {"model": "m", "version": "1", "inputs": [tensor], "parameters": {"n": 1}}
        code = call(page, "snippets.js", "m.grpcurl(a[0], [], a[1]).text", given, TARGET)
        seen = words(code, "grpcurl", tmp_path)
        message = json_format.Parse(seen[seen.index("-d") + 1], kserve_pb2.ModelInferRequest())
        assert message.parameters["n"].int64_param == 1
        if datatype in {"FP16", "BF16"}:
            (raw,) = message.raw_input_contents
            bits = np.frombuffer(raw, "<u2")
            halves = (
                bits.view("<f2") if datatype == "FP16" else (bits.astype("<u4") << 16).view("<f4")
            )
            assert list(halves) == values
        else:
            ((_, found),) = message.inputs[0].contents.ListFields()
            assert list(found) == values


def test_generate_takes_what_has_no_shape_of_its_own(page: Page) -> None:
    def body(datatype: str, dims: list[int], shape: list[int], text: str, name: str = "x") -> Any:
        tensors = "await import('/console/static/tensors.js')"
        values = f"({tensors}).parseValues(a[1], a[4])"
        given = f"{{ name: a[0], datatype: a[1], shape: a[3], values: {values} }}"
        script = f"m.generateBody({{ inputs: [{given}], parameters: {{ n: 1 }} }}, [a[5]])"
        described = {"name": name, "dims": dims}
        return call(page, "wire.js", script, name, datatype, dims, shape, text, described)

    assert body("INT64", [-1, 2], [1, 2], "9007199254740993, -1") == (
        '{"x":[9007199254740993,-1],"parameters":{"n":1}}'
    )
    assert json.loads(body("BYTES", [-1, -1], [1, 2], '["a", "it\'s"]'))["x"] == ["a", "it's"]
    # Two rows of one would come as one row of two.
    for refused, why in (
        (("FP32", [-1, -1], [2, 1], "1, 2"), "shape 1, 2"),
        (("FP16", [2], [2], "1, 2"), "no JSON form"),
        (("FP32", [2], [2], "1, 2", "id"), "another thing"),
    ):
        with pytest.raises(Exception, match=why):
            body(*refused)


def test_halves_are_rounded_as_numpy_does(page: Page) -> None:
    generator = np.random.default_rng(1)
    # Bits of halves, and what lies between them.
    values = np.concatenate(
        [
            np.arange(0, 0x7C00, 7, dtype="<u2").view("<f2").astype("f8"),
            generator.uniform(-70000, 70000, 500),
            generator.uniform(-1e-4, 1e-4, 500),
            [
                0.0,
                -0.0,
                65519.9,
                65520.0,
                5.96e-8,
                2.98e-8,
                2.99e-8,
                6.1e-5,
                1 + 2**-11,
                1 + 3 * 2**-11,
            ],
        ]
    )
    encode = "btoa(String.fromCharCode(...m.rawTensor('FP16', a[0])))"
    raw = base64.b64decode(call(page, "wire.js", encode, values.tolist()))
    with np.errstate(over="ignore"):
        expected = values.astype("<f2")
    assert raw == expected.tobytes()


def test_values_are_read_and_bounded(page: Page) -> None:
    read = "m.parseValues(a[0], a[1]).map(String)"
    assert call(page, "tensors.js", read, "FP32", "[[1, 2.5], [-3e2]]") == ["1", "2.5", "-300"]
    assert call(page, "tensors.js", read, "INT64", "9223372036854775807 -1") == [
        "9223372036854775807",
        "-1",
    ]
    assert call(page, "tensors.js", read, "BOOL", "true,0") == ["true", "false"]
    assert call(page, "tensors.js", read, "BYTES", "a\nb, c") == ["a", "b, c"]
    assert call(page, "tensors.js", read, "BYTES", '["a", ["b"]]') == ["a", "b"]
    failed = "(() => { try { m.parseValues(a[0], a[1]); } catch (e) { return e.message; } })()"
    assert "from 0 to 255" in call(page, "tensors.js", failed, "UINT8", "256")
    assert "9223372036854775807" in call(page, "tensors.js", failed, "INT64", "9223372036854775808")
    assert "whole numbers" in call(page, "tensors.js", failed, "INT32", "1.5")
    assert "no finite number" in call(page, "tensors.js", failed, "FP32", "NaN")
    for datatype in ("BOOL", "INT8", "UINT64", "FP16", "FP64", "BYTES"):
        again = (
            "(() => { const v = m.randomValues(a[0], 50);"
            " const again = m.parseValues(a[0], m.valuesText(a[0], v));"
            " return [v.map(String), again.map(String)]; })()"
        )
        made, parsed = call(page, "tensors.js", again, datatype)
        assert made == parsed


def test_events_come_in_any_pieces(page: Page) -> None:
    text = (
        'event: snapshot\ndata: {"a":\ndata: 1}\n\n:\n\n'
        "event: patch\r\ndata: x: y\r\n\r\ndata: z\n\n"
    )
    script = (
        "(() => { const p = new m.EventParser(); const found = [];"
        " for (let i = 0; i < a[0].length; i += a[1])"
        " found.push(...p.push(a[0].slice(i, i + a[1])));"
        " return found; })()"
    )
    for size in (1, 2, 3, 1000):
        assert call(page, "stream.js", script, text, size) == [
            {"event": "snapshot", "data": '{"a":\n1}'},
            {"event": "patch", "data": "x: y"},
            {"event": "message", "data": "z"},
        ]


def test_pauses_grow_to_a_bound(page: Page) -> None:
    longest = call(page, "stream.js", "[0, 1, 5, 50].map((n) => m.pauseMs(n, () => 1))")
    assert longest == [500, 1000, 16_000, 20_000]
    assert call(page, "stream.js", "m.pauseMs(50, () => 0)") == 10_000


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        # RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(page: Page, target: Any, patch: Any, expected: Any) -> None:
    assert call(page, "facts.js", "m.merge(a[0], a[1])", target, patch) == expected


def test_a_patch_reaches_no_prototype(page: Page) -> None:
    script = (
        "(() => { const made = m.merge({}, JSON.parse(a[0]));"
        " return [({}).polluted ?? null, Object.keys(made)]; })()"
    )
    text = '{"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}}'
    assert call(page, "facts.js", script, text) == [None, ["__proto__", "constructor"]]


def test_differences_go_down_to_values(page: Page) -> None:
    differences = [
        {
            "field": "input",
            "declared": [],
            "effective": [{"name": "x", "dims": [8], "optional": False}],
        },
        {"field": "max_batch_size", "declared": 4, "effective": 8},
        {
            "field": "instance_group",
            "declared": [{"name": "", "count": 0}],
            "effective": [{"name": "g", "count": 2}],
        },
        {"field": "version_policy", "effective": {"latest": {"num_versions": 1}}},
        {"field": "runtime", "declared": "old", "effective": ""},
        {"field": "parameters", "declared": {}, "effective": {}},
    ]
    found = call(page, "diff.js", "m.lines(a[0])", differences)
    assert [
        (each["field"], each["declared"], each["effective"], each["kind"]) for each in found
    ] == [
        ("input[0].name", None, '"x"', "added"),
        ("input[0].dims", None, "[8]", "added"),
        ("max_batch_size", "4", "8", "changed"),
        ("instance_group[0].name", None, '"g"', "added"),
        ("instance_group[0].count", None, "2", "added"),
        ("version_policy.latest.num_versions", None, "1", "added"),
        ("runtime", '"old"', None, "removed"),
    ]


def test_figures_as_people_read_them(page: Page) -> None:
    for expression, expected in {
        "m.seconds(0.00312)": "3.12 ms",
        "m.seconds(4e-5)": "40.0 µs",
        "m.seconds(95)": "95.0 s",
        "m.seconds(undefined)": "\u2013",
        "m.bytes(1536)": "1.50 KiB",
        "m.percent(0.0004)": "< 0.1 %",
        "m.rate(1234.5)": "1,235",
        "m.plural(1, 'row')": "1 row",
        "m.float32(Math.fround(0.1))": "0.1",
        "m.float32(Math.fround(16777217))": "16777216",
    }.items():
        assert call(page, "format.js", expression) == expected
