// A request that is built from a model's metadata: its form, its response, and code that sends it.

import { breakdown } from "./chart.js";
import { announce, copyButton } from "./dialogs.js";
import { h } from "./dom.js";
import { may, rowsOf } from "./facts.js";
import { float32, plural, seconds } from "./format.js";
import { generate } from "./generate.js";
import { address, badge, empty, foldedText, idOf, modelLink, section, table } from "./parts.js";
import { header, request as send } from "./session.js";
import { curl, curlStream, grpcurl, python } from "./snippets.js";
import { messageOf } from "./stream.js";
import { elementCount, firstShape, parseShape, parseValues, randomValues, valuesText } from "./tensors.js";
import { binaryBody, fitsPath, hasJson, inferPath, jsonBody, modelPath, readOutputs } from "./wire.js";

// Number of values above which a field does not show them as text, because the page would be slow.
const MAX_WRITTEN = 4096;
const MAX_READ = 64;
// Characters of a response that are shown if there are several responses.
const MAX_TEXT = 1000;
const CODES = [["curl", "curl"], ["http", "Python"], ["grpc", "Python, gRPC"], ["grpcurl", "grpcurl"]];

export const title = ({ name }) => `Request to ${name ?? "a model"}`;
export const query = ({ name }) => ({ model: name ?? "" });

export function render(context) {
  const { facts, parameters, ui } = context;
  const rows = rowsOf(facts).filter((row) => row.name === parameters.name);
  const row = rows.find((each) => each.version === parameters.version) ?? rows[0];
  const head = [
    h("p", { class: "crumbs" }, modelLink(parameters.name, parameters.version, `Back to ${parameters.name}`)),
    h("h1", { tabindex: -1 }, "Request to ", h("span", { class: "name" }, parameters.name)),
  ];
  if (!row) return [head, empty("No repository of this mesh has a model of this name.")];
  if (!may(facts, row, "inference")) return [head, empty("Your key may not send requests to this model.")];
  const spec = specOf(context, row);
  if (!spec) return [head, empty(ui.metadataError ?? "Reading what the model takes.")];
  fill(ui, spec);
  const [request, errors] = build(ui, spec, parameters);
  return [
    head,
    spec.decoupled ? h("p", { class: "banner" }, "This model responds any number of times (decoupled): its responses come by /generate_stream.") : null,
    h("div", { class: "workbench" },
      h("div", { class: "side" },
        h("form", { class: "card", novalidate: true, "aria-labelledby": "inputs-title", onsubmit: (event) => {
          event.preventDefault();
          if (request) submit(context, request, spec);
        } },
        h("h2", { id: "inputs-title" }, "Inputs"),
        spec.inputs.map((input) => field(context, input, errors)),
        options(context, rows, row, errors),
        h("div", { class: "buttons" },
          h("button", { class: "main", disabled: ui.sending === true }, ui.sending ? "Sending" : "Send"),
          ui.stop ? h("button", { type: "button", key: "stop", onclick: ui.stop }, "Stop") : null,
          h("button", { type: "button", onclick: () => {
            ui.inputs = null;
            context.refresh();
          } }, "New random data"))),
        paste(context, spec)),
      h("div", { class: "side" },
        section("Response", response(ui)),
        section("The same as code", code(context, request, spec)))),
  ];
}

// ---- the model's inputs

function specOf({ facts, ui, refresh }, row) {
  const config = facts.details?.model === row.name ? facts.details.versions?.[row.version]?.effective : null;
  if (config?.input) {
    const batch = config.max_batch_size > 0 ? [-1] : [];
    const tensor = ({ name, data_type: type, dims, optional }) => ({
      name, datatype: datatypeOf(type), dims: [...batch, ...(dims ?? []).map(Number)], optional: optional === true,
    });
    return {
      inputs: config.input.map(tensor), outputs: (config.output ?? []).map(tensor),
      decoupled: config.model_transaction_policy?.decoupled === true,
    };
  }
  if (ui.metadata === undefined) {
    ui.metadata = null;
    readMetadata(ui, row).finally(refresh);
  }
  return ui.metadata;
}

async function readMetadata(ui, row) {
  try {
    const response = await send(modelPath({ model: row.name, version: row.version }));
    if (!response.ok) throw new Error(await messageOf(response));
    const { inputs, outputs } = await response.json();
    const tensor = ({ name, datatype, shape }) => ({ name, datatype, dims: shape.map(Number), optional: false });
    ui.metadata = { inputs: inputs.map(tensor), outputs: outputs.map(tensor), decoupled: false };
  } catch (error) {
    ui.metadataError = `What the model takes is not known: ${error.message}`;
  }
}

function datatypeOf(type) {
  return type === "TYPE_STRING" ? "BYTES" : String(type).replace(/^TYPE_/, "");
}

function fill(ui, spec) {
  // Inputs may have any name, even one of Object's own members.
  ui.inputs ??= Object.create(null);
  for (const input of spec.inputs) {
    if (!Object.hasOwn(ui.inputs, input.name)) {
      ui.inputs[input.name] = { used: !input.optional, shape: firstShape(input.dims).join(", "), text: "", values: null };
      randomize(ui.inputs[input.name], input);
    }
  }
}

function randomize(state, input) {
  try {
    const shape = parseShape(state.shape, input.dims);
    const values = randomValues(input.datatype, elementCount(shape));
    state.values = values;
    state.text = values.length <= MAX_WRITTEN ? valuesText(input.datatype, values) : "";
  } catch {
    // The shape's field shows its own error.
  }
}

// Returns [request, errors by field]; request is null while there are errors.
function build(ui, spec, { name, version }) {
  const errors = Object.create(null);
  const inputs = [];
  for (const input of spec.inputs) {
    const state = ui.inputs[input.name];
    if (!state.used) continue;
    try {
      const shape = parseShape(state.shape, input.dims);
      try {
        const values = state.values ?? parseValues(input.datatype, state.text);
        if (values.length !== elementCount(shape)) {
          throw new Error(`${plural(values.length, "value")}, but the shape has ${elementCount(shape)}`);
        }
        state.values = values;
        inputs.push({ name: input.name, datatype: input.datatype, shape, values });
      } catch (error) {
        errors[`${input.name} values`] = error.message;
      }
    } catch (error) {
      errors[`${input.name} shape`] = error.message;
    }
  }
  let parameters = {};
  try {
    parameters = ui.parameters?.trim() ? JSON.parse(ui.parameters) : {};
    if (parameters === null || typeof parameters !== "object" || Array.isArray(parameters)) throw new Error("no object");
  } catch (error) {
    errors.parameters = `write a JSON object, such as {"sequence_id": 1}: ${error.message}`;
  }
  const request = { model: name, version: version ?? "", inputs, parameters };
  return [Object.keys(errors).length === 0 ? request : null, errors];
}

// ---- the form

function field({ ui, refresh }, input, errors) {
  const state = ui.inputs[input.name];
  const id = `input-${idOf(input.name)}`;
  const shapeError = errors[`${input.name} shape`];
  const valuesError = errors[`${input.name} values`];
  const fixed = input.dims.every((size) => size >= 0);
  const large = state.values !== null && state.values.length > MAX_WRITTEN;
  return h("fieldset", { key: input.name },
    h("legend", null, h("span", { class: "name" }, input.name), " ", h("span", { class: "type" }, `${input.datatype} [${input.dims.join(", ")}]`)),
    input.optional ? h("label", { class: "check" }, h("input", { type: "checkbox", checked: state.used, onchange: (event) => {
      state.used = event.target.checked;
      refresh();
    } }), "send this optional input") : null,
    state.used ? [
      h("label", { for: `${id}-shape` }, "Shape"),
      h("div", { class: "joined" },
        h("input", {
          id: `${id}-shape`, value: state.shape, readonly: fixed, spellcheck: "false", autocomplete: "off",
          ...invalid(`${id}-shape`, shapeError),
          oninput: (event) => {
            state.shape = event.target.value;
            randomize(state, input);
            refresh();
          },
        }),
        h("button", { type: "button", "aria-label": `Random data for ${input.name}`, onclick: () => {
          randomize(state, input);
          refresh();
        } }, "Random")),
      errorText(`${id}-shape`, shapeError),
      h("label", { for: `${id}-values` }, input.datatype === "BYTES" ? "Values: JSON, or one a line" : "Values"),
      h("textarea", {
        id: `${id}-values`, rows: 3, spellcheck: "false", value: state.text,
        placeholder: large ? `${plural(state.values.length, "random value")}, too many to show. Write others here.` : "",
        ...invalid(`${id}-values`, valuesError),
        oninput: (event) => {
          state.text = event.target.value;
          state.values = null;
          refresh();
        },
      }),
      errorText(`${id}-values`, valuesError),
    ] : null);
}

// Returns the attributes that mark a field with an error.
function invalid(id, error) {
  return error ? { "aria-invalid": "true", "aria-describedby": `${id}-error` } : {};
}

function errorText(id, error) {
  return error ? h("p", { class: "error", id: `${id}-error` }, error) : null;
}

function options({ ui, refresh, replace }, rows, row, errors) {
  return h("details", { key: "options" }, h("summary", null, "Version and parameters"),
    h("label", { for: "version" }, "Version"),
    h("select", { id: "version", value: row.version, onchange: (event) => replace(address("request", { name: row.name, version: event.target.value })) },
      rows.map((each) => h("option", { key: each.version, value: each.version }, each.version || "–"))),
    h("label", { for: "parameters" }, "Parameters, a JSON object"),
    h("textarea", {
      id: "parameters", rows: 2, spellcheck: "false", placeholder: '{"sequence_id": 1, "sequence_start": true}', value: ui.parameters ?? "",
      ...invalid("parameters", errors.parameters),
      oninput: (event) => {
        ui.parameters = event.target.value;
        refresh();
      },
    }),
    errorText("parameters", errors.parameters));
}

function paste({ ui, refresh }, spec) {
  return h("details", { class: "card", key: "paste" }, h("summary", null, "Fill in from JSON"),
    h("label", { for: "paste" }, "A request's body, as /infer takes it"),
    h("textarea", { id: "paste", rows: 4, spellcheck: "false", value: ui.pasted ?? "", oninput: (event) => {
      ui.pasted = event.target.value;
    } }),
    ui.pasteError ? h("p", { class: "error", role: "alert" }, ui.pasteError) : null,
    h("button", { type: "button", onclick: () => {
      try {
        fillFromJson(ui, spec, ui.pasted ?? "");
        ui.pasteError = "";
        announce("The form is filled in.");
      } catch (error) {
        ui.pasteError = error.message;
      }
      refresh();
    } }, "Fill in"));
}

function fillFromJson(ui, spec, text) {
  // Large integers keep their digits if the browser passes the source text.
  const document = JSON.parse(text, (name, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? context.source : value);
  if (!Array.isArray(document?.inputs)) throw new Error('expected {"inputs": [...]}');
  for (const given of document.inputs) {
    const input = spec.inputs.find((each) => each.name === given.name);
    if (!input) throw new Error(`the model has no input ${given.name}`);
    if (!Array.isArray(given.data)) throw new Error(`${given.name} has no data`);
    const values = given.data.flat(Infinity);
    const shape = Array.isArray(given.shape) ? given.shape.join(", ") : ui.inputs[input.name].shape;
    ui.inputs[input.name] = { used: true, shape, text: valuesText(input.datatype, values), values: null };
  }
  for (const input of spec.inputs) {
    if (input.optional && !document.inputs.some((each) => each.name === input.name)) ui.inputs[input.name].used = false;
  }
  if (document.parameters) ui.parameters = JSON.stringify(document.parameters);
}

// ---- the response

async function submit(context, request, spec) {
  const { ui, refresh } = context;
  if (!fitsPath(request.model)) {
    ui.result = { error: "A browser cannot have this model's name in a URL: send it by the code." };
    refresh();
    return;
  }
  if (spec.decoupled) {
    await stream(context, request, spec);
    return;
  }
  ui.sending = true;
  refresh();
  const started = performance.now();
  try {
    const sent = hasJson(request, spec.outputs)
      ? { body: jsonBody(request), headers: { "content-type": "application/json" } }
      : binaryBody(request);
    const reply = await send(inferPath(request), {
      method: "POST", body: sent.body, headers: { ...sent.headers, "nereid-timing": "1" },
    });
    if (!reply.ok) {
      ui.result = { status: reply.status, error: await messageOf(reply), took: performance.now() - started };
    } else {
      const buffer = await reply.arrayBuffer();
      const took = performance.now() - started;
      ui.result = {
        status: reply.status, took, timing: reply.headers.get("server-timing"),
        ...readOutputs(buffer, reply.headers.get("inference-header-content-length")),
      };
    }
    announce(ui.result.error ? `Error ${ui.result.status}.` : "The response is there.");
  } catch (error) {
    ui.result = { error: error.message, took: performance.now() - started };
    announce("The request failed.");
  } finally {
    ui.sending = false;
    refresh();
  }
}

async function stream({ ui, refresh, draw }, request, spec) {
  const abort = new AbortController();
  const stop = () => abort.abort();
  // Leaving the view stops the request, because nobody sees the responses any more.
  addEventListener("hashchange", stop, { once: true });
  Object.assign(ui, { sending: true, stop, result: null });
  refresh();
  const { error, count } = await generate(request, spec.inputs, abort.signal, (result) => {
    ui.result = result;
    draw();
  });
  removeEventListener("hashchange", stop);
  Object.assign(ui, { sending: false, stop: null });
  announce(error ? "The request failed." : `${plural(count, "response")}.`);
  refresh();
}

function response({ result, sending }) {
  if (!result) return empty(sending ? "Waiting." : "Nothing was sent yet.");
  const { status, took, error, outputs, document, timing } = result;
  if (result.responses) return responses(result, sending);
  return [
    h("div", { class: "inline", id: "outcome" },
      badge(error ? "bad" : "good", status ? `${status}` : "failed"),
      took === undefined ? null : h("b", { class: "duration" }, seconds(took / 1e3)),
      h("span", { class: "quiet" }, "as this page saw it")),
    error ? h("p", { class: "reason" }, error) : null,
    timing ? timings(timing) : null,
    outputs ? table("Outputs", [
      { title: "Output", cell: (each) => h("span", { class: "name" }, each.name) },
      { title: "Type", cell: (each) => h("span", { class: "type" }, `${each.datatype} [${each.shape.join(", ")}]`) },
      { title: "Values", cell: (each) => h("code", { class: "values" }, readable(each)) },
    ], outputs, (each) => each.name, "stacked outputs") : null,
    document ? foldedText("The response as JSON", shortened(JSON.stringify(document, null, 1))) : null,
  ];
}

function responses({ status, took, error, count, responses: kept, stopped }, sending) {
  return [
    h("div", { class: "inline", id: "outcome" },
      badge(error || status >= 400 ? "bad" : sending ? "busy" : "good", status ? `${status}` : "failed"),
      h("b", { class: "duration" }, seconds(took / 1e3)),
      h("span", { class: "quiet" }, `${plural(count, "response")}${count > kept.length ? `, the first ${kept.length} below` : ""}`)),
    error ? h("p", { class: "reason" }, error) : null,
    stopped ? h("p", { class: "quiet" }, stopped) : null,
    kept.length > 0 ? table("Responses", [
      { title: "After", cell: (each) => seconds(each.took / 1e3) },
      { title: "Response", cell: (each) => h("code", { class: "values" }, each.text.slice(0, MAX_TEXT)) },
    ], kept, (each) => `${each.number}`, "stacked") : null,
  ];
}

function readable({ datatype, values }) {
  const written = { BYTES: JSON.stringify, FP32: float32 }[datatype] ?? String;
  const shown = values.slice(0, MAX_READ).map((each) => written(each));
  return `${shown.join(", ")}${values.length > MAX_READ ? `, … ${plural(values.length - MAX_READ, "more value", "more values")}` : ""}`;
}

function shortened(text) {
  return text.length > 20_000 ? `${text.slice(0, 20_000)}\n…` : text;
}

// Parses W3C's Server-Timing: name;dur=milliseconds, ...
function timings(header) {
  const entries = [...header.matchAll(/([\w-]+)((?:;[^,;"]*(?:"[^"]*")?)*)/g)].map(([, name, rest]) => ({
    name, ms: Number(/;\s*dur=([\d.]+)/.exec(rest)?.[1] ?? NaN), text: /;\s*desc="([^"]*)"/.exec(rest)?.[1] ?? "",
  }));
  const total = entries.find((each) => each.name === "total");
  const parts = entries.filter((each) => each !== total && Number.isFinite(each.ms)).map((each, index) => ({
    name: each.name.replaceAll("-", " "), value: each.ms, text: seconds(each.ms / 1e3), tone: (index % 8) + 1,
  }));
  const words = entries.filter((each) => !Number.isFinite(each.ms) && each.text).map((each) => `${each.name} ${each.text}`);
  return h("div", { class: "phases", id: "timings" },
    total ? h("p", null, "Of these in the mesh: ", h("b", null, seconds(total.ms / 1e3))) : null,
    breakdown(parts),
    words.length > 0 ? h("p", { class: "quiet" }, words.join(" · ")) : null);
}

// ---- the code

function code({ facts, ui, refresh }, request, spec) {
  const chosen = spec.decoupled ? "curl" : ui.code ?? "curl";
  const choices = h("div", { class: "segments", role: "radiogroup", "aria-label": "Kind of code" }, CODES.filter(([name]) => !spec.decoupled || name === "curl").map(([name, text]) =>
    h("label", { key: name }, h("input", { type: "radio", name: "code", value: name, checked: name === chosen, onchange: () => {
      ui.code = name;
      refresh();
    } }), h("span", null, text))));
  if (!request) return [choices, empty("The inputs have errors.")];
  const grpcPort = facts.server.grpc_port;
  const target = {
    origin: location.origin, host: location.host, grpc: grpcPort ? `${location.hostname}:${grpcPort}` : "",
    secure: location.protocol === "https:", header: header(),
  };
  const { text, note } = {
    curl: () => (spec.decoupled ? curlStream(request, spec.inputs, target) : curl(request, spec.outputs, target)),
    grpcurl: () => grpcurl(request, spec.outputs, target),
    http: () => python(request, spec.outputs, target, "http"), grpc: () => python(request, spec.outputs, target, "grpc"),
  }[chosen]();
  return [
    choices,
    text === null ? empty(note) : [
      note ? h("p", { class: "quiet" }, note) : null,
      h("div", { class: "code" },
        h("pre", { tabindex: 0, "aria-label": `Code: ${chosen}` }, h("code", { id: "code" }, shortened(text))),
        copyButton(text, "the code")),
    ],
  ];
}
