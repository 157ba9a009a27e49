// Requests and responses of KServe v2 over HTTP: as JSON if their datatypes have such a form, else
// with raw tensors behind a JSON header. Pure.

import { BINARY_ONLY, elementCount } from "./tensors.js";

const SIZES = {
  BOOL: 1, INT8: 1, UINT8: 1, INT16: 2, UINT16: 2, FP16: 2, BF16: 2,
  INT32: 4, UINT32: 4, FP32: 4, INT64: 8, UINT64: 8, FP64: 8,
};
const GETTERS = {
  BOOL: (view, at) => view.getUint8(at) !== 0,
  INT8: (view, at) => view.getInt8(at),
  UINT8: (view, at) => view.getUint8(at),
  INT16: (view, at) => view.getInt16(at, true),
  UINT16: (view, at) => view.getUint16(at, true),
  INT32: (view, at) => view.getInt32(at, true),
  UINT32: (view, at) => view.getUint32(at, true),
  INT64: (view, at) => view.getBigInt64(at, true),
  UINT64: (view, at) => view.getBigUint64(at, true),
  FP16: (view, at) => fromHalf(view.getUint16(at, true)),
  BF16: (view, at) => fromBits(view.getUint16(at, true) << 16),
  FP32: (view, at) => view.getFloat32(at, true),
  FP64: (view, at) => view.getFloat64(at, true),
};
const SETTERS = {
  BOOL: (view, at, value) => view.setUint8(at, value ? 1 : 0),
  INT8: (view, at, value) => view.setInt8(at, value),
  UINT8: (view, at, value) => view.setUint8(at, value),
  INT16: (view, at, value) => view.setInt16(at, value, true),
  UINT16: (view, at, value) => view.setUint16(at, value, true),
  INT32: (view, at, value) => view.setInt32(at, value, true),
  UINT32: (view, at, value) => view.setUint32(at, value, true),
  INT64: (view, at, value) => view.setBigInt64(at, value, true),
  UINT64: (view, at, value) => view.setBigUint64(at, value, true),
  FP16: (view, at, value) => view.setUint16(at, toHalf(value), true),
  BF16: (view, at, value) => view.setUint16(at, toBfloat(value), true),
  FP32: (view, at, value) => view.setFloat32(at, value, true),
  FP64: (view, at, value) => view.setFloat64(at, value, true),
};

export function modelPath({ model, version }) {
  return `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${version}` : ""}`;
}

// Returns a request's path. request: { model, version, inputs: [{ name, datatype, shape, values }],
// parameters }.
export function inferPath(request) {
  return `${modelPath(request)}/infer`;
}

export function generatePath(request) {
  return `${modelPath(request)}/generate_stream`;
}

// Returns whether a name can be part of a path. Names are percent-encoded there, which does not help
// for slashes and dot segments.
export function fitsPath(name) {
  return name.isWellFormed() && !name.includes("/") && name !== "." && name !== "..";
}

// Returns whether all tensors have a JSON form. outputs: those of the model's metadata.
export function hasJson(request, outputs) {
  return ![...request.inputs, ...outputs].some(({ datatype }) => BINARY_ONLY.has(datatype));
}

// Returns the body as JSON. 64-bit integers are written with all their digits.
export function jsonBody({ inputs, parameters }) {
  const texts = inputs.map(({ name, datatype, shape, values }) => {
    const data = valuesJson(values);
    const head = JSON.stringify({ name, datatype, shape });
    return `${head.slice(0, -1)},"data":[${data}]}`;
  });
  const rest = parameters && Object.keys(parameters).length > 0 ? `"parameters":${JSON.stringify(parameters)},` : "";
  return `{${rest}"inputs":[${texts.join(",")}]}`;
}

function valuesJson(values) {
  return values.map((each) => (typeof each === "bigint" ? String(each) : JSON.stringify(each))).join(",");
}

// Returns the request's body for /generate_stream, which has no shapes and no raw tensors.
// described: the inputs of the model's metadata. Throws an Error if the request cannot be expressed.
export function generateBody({ inputs, parameters }, described) {
  const members = inputs.map(({ name, datatype, shape, values }) => {
    if (name === "id" || name === "parameters") throw new Error(`/generate_stream takes ${name} for another thing than an input: use a gRPC stream`);
    if (BINARY_ONLY.has(datatype)) throw new Error(`${name}: ${datatype} has no JSON form: use a gRPC stream`);
    const taken = generateShape(described.find((each) => each.name === name).dims, values.length);
    if (String(taken) !== String(shape)) {
      throw new Error(`${name}: /generate_stream makes the shape ${taken.join(", ")} of ${values.length} values: use that, or a gRPC stream`);
    }
    return `${JSON.stringify(name)}:[${valuesJson(values)}]`;
  });
  if (parameters && Object.keys(parameters).length > 0) members.push(`"parameters":${JSON.stringify(parameters)}`);
  return `{${members.join(",")}}`;
}

// Returns the shape that /generate_stream gives a number of values. The innermost variable dimension
// takes all values that the fixed dimensions leave; other variable dimensions are 1.
function generateShape(dims, count) {
  let rest = dims.reduce((left, size) => (size < 0 ? left : left / size), count);
  return dims.toReversed().map((size) => {
    if (size >= 0) return size;
    const taken = rest;
    rest = 1;
    return taken;
  }).toReversed();
}

// Returns { body, headers } of a request with raw tensors, which asks for raw outputs as well.
export function binaryBody({ inputs, parameters }) {
  const raws = inputs.map(({ datatype, values }) => rawTensor(datatype, values));
  const header = new TextEncoder().encode(
    JSON.stringify({
      parameters: { ...parameters, binary_data_output: true },
      inputs: inputs.map(({ name, datatype, shape }, index) => ({
        name, datatype, shape, parameters: { binary_data_size: raws[index].length },
      })),
    }),
  );
  return {
    body: new Blob([header, ...raws]),
    headers: {
      "content-type": "application/octet-stream",
      "inference-header-content-length": String(header.length),
    },
  };
}

export function rawTensor(datatype, values) {
  if (datatype === "BYTES") {
    const parts = values.map((each) => new TextEncoder().encode(each));
    const raw = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
    const view = new DataView(raw.buffer);
    let at = 0;
    for (const part of parts) {
      view.setUint32(at, part.length, true);
      raw.set(part, at + 4);
      at += 4 + part.length;
    }
    return raw;
  }
  const size = SIZES[datatype];
  const raw = new Uint8Array(values.length * size);
  const view = new DataView(raw.buffer);
  values.forEach((value, index) => SETTERS[datatype](view, index * size, value));
  return raw;
}

// Returns the outputs of a response: [{ name, datatype, shape, values }]. headerLength: value of the
// header Inference-Header-Content-Length, or null. Throws an Error for an invalid response.
export function readOutputs(buffer, headerLength) {
  const length = headerLength === null ? buffer.byteLength : Number(headerLength);
  const document = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, length)));
  let at = length;
  const outputs = (document.outputs ?? []).map(({ name, datatype, shape, data, parameters }) => {
    let values = data;
    if (parameters?.binary_data_size !== undefined) {
      values = readRaw(datatype, new DataView(buffer, at, parameters.binary_data_size), elementCount(shape));
      at += parameters.binary_data_size;
    }
    return { name, datatype, shape, values: (values ?? []).flat(Infinity) };
  });
  return { document, outputs };
}

function readRaw(datatype, view, count) {
  if (datatype !== "BYTES") {
    return Array.from({ length: count }, (_, index) => GETTERS[datatype](view, index * SIZES[datatype]));
  }
  const values = [];
  for (let at = 0; at < view.byteLength; ) {
    const length = view.getUint32(at, true);
    values.push(new TextDecoder().decode(new Uint8Array(view.buffer, view.byteOffset + at + 4, length)));
    at += 4 + length;
  }
  return values;
}

const SCRATCH = new DataView(new ArrayBuffer(4));

function bitsOf(value) {
  SCRATCH.setFloat32(0, value);
  return SCRATCH.getUint32(0);
}

function fromBits(bits) {
  SCRATCH.setUint32(0, bits >>> 0);
  return SCRATCH.getFloat32(0);
}

// Rounds to the nearest value, and to the even one of two.
function toBfloat(value) {
  const bits = bitsOf(value);
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

function toHalf(value) {
  const sign = Object.is(value, -0) || value < 0 ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(size)) return 0x7e00;
  if (size >= 65_520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | even(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  // Rounding up to the next power of two carries into the exponent, which gives the right value.
  return sign | (((exponent + 15) << 10) + even((size / 2 ** exponent - 1) * 1024));
}

function even(value) {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
