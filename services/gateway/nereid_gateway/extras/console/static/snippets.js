// A request as a command or a program that sends it again: curl, Python, grpcurl. Pure.
//
// Names and values may be anything: whatever is quoted here is run by people in their shells.

import { elementCount } from "./tensors.js";
import { fitsPath, generateBody, generatePath, hasJson, inferPath, jsonBody, rawTensor } from "./wire.js";

// One argument longer than this is refused by Linux.
const MOST_ARGUMENT = 100_000;
// Programs have so many values written out; of more they make their own.
const MOST_LITERALS = 512;
const NUMPY = {
  BOOL: "np.bool_", INT8: "np.int8", UINT8: "np.uint8", INT16: "np.int16", UINT16: "np.uint16",
  INT32: "np.int32", UINT32: "np.uint32", INT64: "np.int64", UINT64: "np.uint64",
  FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BF16: "np.float32", BYTES: "np.object_",
};
const CONTENTS = {
  BOOL: "bool_contents", INT8: "int_contents", INT16: "int_contents", INT32: "int_contents",
  INT64: "int64_contents", UINT8: "uint_contents", UINT16: "uint_contents", UINT32: "uint_contents",
  UINT64: "uint64_contents", FP32: "fp32_contents", FP64: "fp64_contents", BYTES: "bytes_contents",
};

// One word of a POSIX shell.
export function shellQuote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// A str of Python: what JSON writes for a text is one.
function pythonQuote(text) {
  return JSON.stringify(text);
}

// { text, note }: text is null where there is no such command, and note says why.
// target: { origin, host, grpc, secure, header }; header: { name, prefix } of the one that carries
// the key, which code takes from the environment, or null.
export function curl(request, outputs, target) {
  if (!hasJson(request, outputs)) {
    return { text: null, note: "FP16 and BF16 have no JSON form: use Python or gRPC." };
  }
  return curlOf(request, inferPath(request), jsonBody(request), target);
}

// To a decoupled model. inputs: of its metadata.
export function curlStream(request, inputs, target) {
  try {
    return curlOf(request, generatePath(request), generateBody(request, inputs), target, " --no-buffer");
  } catch (error) {
    return { text: null, note: error.message };
  }
}

function curlOf(request, path, body, target, more = "") {
  if (!fitsPath(request.model)) {
    return { text: null, note: "A URL cannot have this model's name: use gRPC." };
  }
  const lines = [
    `curl --globoff --path-as-is --silent --show-error${more}`,
    shellQuote(target.origin + path),
    `-H ${shellQuote("Content-Type: application/json")}`,
  ];
  if (target.header) lines.push(keyArgument(target.header));
  return { text: withBody(lines, "--data-raw", "--data-binary @-", body), note: keyNote(target) };
}

export function grpcurl(request, outputs, target) {
  if (!target.grpc) return { text: null, note: "This gateway has no gRPC port." };
  const raw = request.inputs.some(({ datatype }) => !(datatype in CONTENTS));
  const message = JSON.stringify({
    model_name: request.model,
    ...(request.version ? { model_version: request.version } : {}),
    ...parametersMessage(request.parameters),
    inputs: request.inputs.map(({ name, datatype, shape, values }) => ({
      name, datatype, shape: shape.map(String),
      ...(raw ? {} : { contents: { [CONTENTS[datatype]]: contents(datatype, values) } }),
    })),
    ...(raw
      ? { raw_input_contents: request.inputs.map(({ datatype, values }) => base64(rawTensor(datatype, values))) }
      : {}),
  });
  const lines = [`grpcurl${target.secure ? "" : " -plaintext"}`];
  if (target.header) lines[0] += ` ${keyArgument(target.header)}`;
  const call = `${shellQuote(target.grpc)} inference.GRPCInferenceService/ModelInfer`;
  return { text: withBody(lines, "-d", "-d @", message, call), note: keyNote(target) };
}

function withBody(lines, flag, fromStdin, body, last = "") {
  const tail = last ? [last] : [];
  if (body.length <= MOST_ARGUMENT) {
    return [...lines, `${flag} ${shellQuote(body)}`, ...tail].join(" \\\n  ");
  }
  // The body has no line ends, so that nothing in it ends the document.
  return `${[...lines, fromStdin, ...tail].join(" \\\n  ")} <<'END_OF_BODY'\n${body}\nEND_OF_BODY`;
}

function contents(datatype, values) {
  if (datatype === "BYTES") return values.map((each) => base64(new TextEncoder().encode(each)));
  return values.map((each) => (typeof each === "bigint" ? String(each) : each));
}

function parametersMessage(parameters) {
  const entries = Object.entries(parameters ?? {}).map(([name, value]) => {
    if (typeof value === "boolean") return [name, { bool_param: value }];
    if (Number.isInteger(value)) return [name, { int64_param: String(value) }];
    if (typeof value === "number") return [name, { double_param: value }];
    return [name, { string_param: String(value) }];
  });
  return entries.length > 0 ? { parameters: Object.fromEntries(entries) } : {};
}

function base64(raw) {
  let text = "";
  for (const byte of raw) text += String.fromCharCode(byte);
  return btoa(text);
}

// protocol: "http" or "grpc".
export function python(request, outputs, target, protocol) {
  const url = protocol === "http" ? target.host : target.grpc;
  if (!url) return { text: null, note: "This gateway has no gRPC port." };
  // tritonclient encodes names as well.
  if (protocol === "http" && encodeURIComponent(request.model) !== request.model) {
    return { text: null, note: "A URL cannot have this model's name: use gRPC." };
  }
  const lines = [
    ...(target.header ? ["import os", ""] : []),
    "import numpy as np",
    `import tritonclient.${protocol} as client`,
    "",
    `server = client.InferenceServerClient(url=${pythonQuote(url)}${target.secure ? ", ssl=True" : ""})`,
    "inputs = []",
  ];
  for (const input of request.inputs) {
    const shape = `[${input.shape.join(", ")}]`;
    lines.push(
      `data = ${numpyArray(input)}.reshape(${shape})`,
      `inputs.append(client.InferInput(${pythonQuote(input.name)}, ${shape}, ${pythonQuote(input.datatype)}))`,
      "inputs[-1].set_data_from_numpy(data)",
    );
  }
  const call = [pythonQuote(request.model), "inputs"];
  if (request.version) call.push(`model_version=${pythonQuote(request.version)}`);
  if (request.parameters && Object.keys(request.parameters).length > 0) {
    call.push(`parameters=${pythonLiteral(request.parameters)}`);
  }
  if (target.header) {
    const { name, prefix } = target.header;
    call.push(`headers={${pythonQuote(name.toLowerCase())}: ${pythonQuote(prefix)} + os.environ["NEREID_KEY"]}`);
  }
  lines.push("", `result = server.infer(${call.join(", ")})`);
  for (const { name } of outputs) {
    lines.push(`print(${pythonQuote(name)}, result.as_numpy(${pythonQuote(name)}))`);
  }
  return { text: `${lines.join("\n")}\n`, note: keyNote(target) };
}

function numpyArray({ datatype, shape, values }) {
  const type = NUMPY[datatype];
  if (values.length > MOST_LITERALS) {
    const count = elementCount(shape);
    if (datatype === "BYTES") return `np.array([b"text"] * ${count}, dtype=${type})`;
    return `np.random.default_rng().uniform(0, 1, ${count}).astype(${type})`;
  }
  const texts = values.map((each) => {
    if (typeof each === "string") return `${pythonQuote(each)}.encode()`;
    return typeof each === "boolean" ? pythonLiteral(each) : String(each);
  });
  return `np.array([${texts.join(", ")}], dtype=${type})`;
}

function pythonLiteral(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value).map(([key, each]) => `${pythonQuote(key)}: ${pythonLiteral(each)}`);
    return `{${members.join(", ")}}`;
  }
  return JSON.stringify(value);
}

// The name is letters, digits and hyphens; the prefix is ours.
function keyArgument({ name, prefix }) {
  return `-H "${name}: ${prefix}$NEREID_KEY"`;
}

function keyNote(target) {
  return target.header ? "The key is not part of it: export NEREID_KEY=… first." : "";
}
