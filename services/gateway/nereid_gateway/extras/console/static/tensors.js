// Parsing of tensors that a person writes: datatypes, shapes, values. Pure.

const INTEGERS = new Map(
  [8n, 16n, 32n, 64n].flatMap((bits) => [
    [`INT${bits}`, { least: -(1n << (bits - 1n)), most: (1n << (bits - 1n)) - 1n }],
    [`UINT${bits}`, { least: 0n, most: (1n << bits) - 1n }],
  ]),
);
const FLOATS = new Set(["FP16", "FP32", "FP64", "BF16"]);
// Datatypes whose numbers a JavaScript number cannot hold exactly; they are BigInts.
const WIDE = new Set(["INT64", "UINT64"]);
// Datatypes without a JSON form in the HTTP protocol.
export const BINARY_ONLY = new Set(["FP16", "BF16"]);
const MAX_ELEMENTS = 2_000_000;

export function elementCount(shape) {
  return shape.reduce((product, size) => product * size, 1);
}

// Returns an initial shape; variable dimensions are 1.
export function firstShape(dims) {
  return dims.map((size) => (Number(size) < 0 ? 1 : Number(size)));
}

// Parses a shape. Throws an Error whose message says what to write instead.
export function parseShape(text, dims) {
  const sizes = text.split(/[\s,x×[\]]+/).filter(Boolean).map((each) => (/^\d+$/.test(each) ? Number(each) : NaN));
  if (sizes.some(Number.isNaN)) throw new Error("a shape is whole numbers with commas between them, such as 1, 8");
  if (sizes.length !== dims.length) throw new Error(`expected ${dims.length} dimensions: ${dims.join(", ")}`);
  sizes.forEach((size, index) => {
    const wanted = Number(dims[index]);
    if (wanted >= 0 && wanted !== size) throw new Error(`dimension ${index + 1} is ${wanted}`);
  });
  if (elementCount(sizes) > MAX_ELEMENTS) throw new Error("too many elements for a page: use a client");
  return sizes;
}

// Parses the values in a text: a JSON array, nested or not, or numbers separated by spaces or commas;
// for BYTES a JSON array of texts, or one text per line. Throws an Error as parseShape does.
export function parseValues(datatype, text) {
  if (datatype === "BYTES") return parseTexts(text);
  const tokens = text.split(/[\s,[\]]+/).filter(Boolean);
  return tokens.map((token) => parseValue(datatype, token));
}

function parseTexts(text) {
  if (!text.trimStart().startsWith("[")) return text === "" ? [] : text.split("\n");
  let values;
  try {
    values = JSON.parse(text).flat(Infinity);
  } catch {
    throw new Error('no JSON array: write ["a", "b"], or one text a line');
  }
  if (values.some((each) => typeof each !== "string")) throw new Error("all elements have to be texts");
  return values;
}

function parseValue(datatype, token) {
  if (datatype === "BOOL") {
    if (["true", "1"].includes(token)) return true;
    if (["false", "0"].includes(token)) return false;
    throw new Error(`${token}: write true or false`);
  }
  const range = INTEGERS.get(datatype);
  if (range) {
    if (!/^[-+]?\d+$/.test(token)) throw new Error(`${token}: ${datatype} has whole numbers`);
    const value = BigInt(token.replace("+", ""));
    if (value < range.least || value > range.most) {
      throw new Error(`${token}: ${datatype} is from ${range.least} to ${range.most}`);
    }
    return WIDE.has(datatype) ? value : Number(value);
  }
  const value = token === "" ? NaN : Number(token);
  if (!Number.isFinite(value)) throw new Error(`${token}: no finite number`);
  return value;
}

export function randomValues(datatype, count, random = Math.random) {
  const one = {
    BOOL: () => random() < 0.5,
    BYTES: () => Array.from({ length: 6 }, () => String.fromCharCode(97 + Math.floor(random() * 26))).join(""),
  }[datatype];
  const range = INTEGERS.get(datatype);
  const number = FLOATS.has(datatype)
    ? () => Math.round((random() * 2 - 1) * 1e4) / 1e4
    : () => Math.floor(random() * 100) * (range?.least < 0n && random() < 0.5 ? -1 : 1) || 0;
  const make = one ?? (WIDE.has(datatype) ? () => BigInt(number()) : number);
  return Array.from({ length: count }, make);
}

// Writes values as a text that parseValues reads.
export function valuesText(datatype, values) {
  return datatype === "BYTES" ? JSON.stringify(values) : values.join(", ");
}
