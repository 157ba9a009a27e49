// All models in pages. The gateway searches, so that ten thousand models are no more work for the
// page than fifty.

import { h } from "./dom.js";
import { may, rowsOf } from "./facts.js";
import { count, microseconds, rate } from "./format.js";
import { address, empty, stateBadge, table, versionLink } from "./parts.js";

const LIMIT = 50;
const PAUSE_MS = 200;

export const title = () => "Models";
export const query = ({ query: text, offset }) => ({ query: text ?? "", offset: Number(offset ?? 0), limit: LIMIT });

export function render({ facts, parameters, ui, replace }) {
  const { models } = facts;
  return [
    h("h1", { tabindex: -1 }, "Models"),
    h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "search" }, "Search by name"),
      h("input", {
        id: "search", type: "search", autocomplete: "off", spellcheck: "false", maxlength: 200,
        value: ui.text ?? parameters.query ?? "",
        oninput: (event) => {
          ui.text = event.target.value;
          clearTimeout(ui.timer);
          ui.timer = setTimeout(() => replace(address("models", { query: ui.text })), PAUSE_MS);
        },
      }),
      h("p", { class: "quiet", role: "status" }, found(models))),
    rowsOf(facts).length === 0
      ? empty(models.total === 0 ? "The repositories have no model." : "No model has that in its name.")
      : table("Models, their states and their load", columns(facts), rowsOf(facts), (row) => row.key, "stacked"),
    pager(models),
  ];
}

function found(models) {
  if (models.query) return `${count(models.matched)} of ${count(models.total)} versions`;
  return `${count(models.total)} versions, failed ones first`;
}

function columns(facts) {
  return [
    { title: "Model", cell: (row) => [versionLink(row.name, row.version),
      row.reason ? h("div", { class: "reason clamp" }, row.reason) : null] },
    { title: "State", cell: (row) => stateBadge(row) },
    { title: "Requests/s", class: "number", cell: (row) => rate(row.rates?.requests) },
    { title: "Errors/s", class: "number", cell: (row) => errors(row) },
    { title: "Latency", class: "number", cell: (row) => microseconds(row.latency_us?.request) },
    { title: "Waiting", class: "number wide", cell: (row) => count(row.queue?.pending) },
    { title: "Batch", class: "number wide", cell: (row) => (row.batches?.mean_rows ? rate(row.batches.mean_rows) : "–") },
    { title: "Instances", class: "number wide", cell: (row) => instances(row) },
    { title: "Try", class: "wide", cell: (row) => (may(facts, row, "inference")
      ? h("a", { href: address("request", { name: row.name, version: row.version }), "aria-label": `Send a request to ${row.name}` }, "Request")
      : null) },
  ];
}

function errors(row) {
  const value = row.rates?.errors;
  return value > 0 ? h("span", { class: "bad-text" }, rate(value)) : rate(value);
}

function instances(row) {
  if (!row.instances) return "–";
  const all = Object.values(row.instances).reduce((sum, each) => sum + each, 0);
  return `${row.instances.busy ?? 0}/${all}`;
}

function pager({ query: text, offset, limit, matched }) {
  if (matched <= limit) return null;
  const page = (name, to, there) =>
    there ? h("a", { href: address("models", { query: text, offset: to }), key: name }, name) : h("span", { class: "quiet", key: name }, name);
  const last = Math.floor((matched - 1) / limit) * limit;
  return h("nav", { class: "pager", "aria-label": "Pages of models" },
    page("First", 0, offset > 0),
    page("Previous", Math.max(0, offset - limit), offset > 0),
    h("span", { key: "where" }, `${count(offset + 1)}–${count(Math.min(matched, offset + limit))} of ${count(matched)}`),
    page("Next", offset + limit, offset + limit < matched),
    page("Last", last, offset < last));
}
