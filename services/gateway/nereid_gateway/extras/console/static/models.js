// All models in pages. The gateway searches, so that ten thousand models are no more work for the
// page than fifty.

import { h } from "./dom.js";
import { may, rowsOf } from "./facts.js";
import { count, microseconds, rate } from "./format.js";
import { address, empty, stateBadge, table, versionLink } from "./parts.js";

const LIMIT = 50;
const PAUSE_MS = 200;
// Orders with the worst first, as the list's title names them.
const ORDERS = {
  errors: "most errors", p50: "slowest by p50", p95: "slowest by p95", p99: "slowest by p99",
  requests: "most requests", pending: "most waiting",
};

export const title = () => "Models";
export const query = ({ query: text, offset, sort }) =>
  ({ query: text ?? "", offset: Number(offset ?? 0), limit: LIMIT, ...(ORDERS[sort] ? { sort } : {}) });

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
          ui.timer = setTimeout(() => replace(address("models", { query: ui.text, sort: parameters.sort ?? "" })), PAUSE_MS);
        },
      }),
      h("p", { class: "quiet", role: "status" }, found(models, parameters.sort)),
      // A narrow page has no titles of columns to sort by.
      h("label", { for: "sort", class: "narrow" }, "Order"),
      h("select", {
        id: "sort", class: "narrow", value: ORDERS[parameters.sort] ? parameters.sort : "",
        onchange: (event) => replace(address("models", { query: parameters.query ?? "", sort: event.target.value })),
      }, h("option", { value: "" }, "by name"), Object.entries(ORDERS).map(([sort, name]) => h("option", { key: sort, value: sort }, name)))),
    rowsOf(facts).length === 0
      ? empty(models.total === 0 ? "The repositories have no model." : "No model has that in its name.")
      : table("Models, their states and their load", columns(facts, parameters), rowsOf(facts), (row) => row.key, "stacked"),
    pager(models, parameters.sort ?? ""),
  ];
}

function found(models, sort) {
  const order = `failed ones first${ORDERS[sort] ? `, then ${ORDERS[sort]}` : ""}`;
  if (models.query) return `${count(models.matched)} of ${count(models.total)} versions, ${order}`;
  return `${count(models.total)} versions, ${order}`;
}

// A column whose title sorts by it, the worst first; a second click sorts by name again.
function sortable(title, sort, { sort: current, query: text = "" }) {
  const chosen = sort === current;
  return {
    title, sort: chosen ? "descending" : "none", class: "number",
    head: h("a", { href: address("models", { query: text, sort: chosen ? "" : sort }), title: chosen ? "Sort by name" : `Sort: ${ORDERS[sort]}` },
      title, chosen ? h("span", { "aria-hidden": "true" }, " ↓") : null),
  };
}

function columns(facts, parameters) {
  return [
    { title: "Model", cell: (row) => [versionLink(row.name, row.version),
      row.reason ? h("div", { class: "reason clamp" }, row.reason) : null] },
    { title: "State", cell: (row) => stateBadge(row) },
    { ...sortable("Requests/s", "requests", parameters), cell: (row) => rate(row.rates?.requests) },
    { ...sortable("Errors/s", "errors", parameters), cell: (row) => errors(row) },
    { ...sortable("p50", "p50", parameters), class: "number wide", cell: (row) => microseconds(row.recent?.p50_us) },
    { ...sortable("p95", "p95", parameters), class: "number wide", cell: (row) => microseconds(row.recent?.p95_us) },
    { ...sortable("p99", "p99", parameters), cell: (row) => microseconds(row.recent?.p99_us) },
    { ...sortable("Waiting", "pending", parameters), class: "number wide", cell: (row) => count(row.queue?.pending) },
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
  // An ensemble has no instances of its own.
  if (all === 0) return "–";
  return `${row.instances.busy ?? 0}/${all}`;
}

function pager({ query: text, offset, limit, matched }, sort) {
  if (matched <= limit) return null;
  const page = (name, to, there) =>
    there ? h("a", { href: address("models", { query: text, offset: to, sort }), key: name }, name) : h("span", { class: "quiet", key: name }, name);
  const last = Math.floor((matched - 1) / limit) * limit;
  return h("nav", { class: "pager", "aria-label": "Pages of models" },
    page("First", 0, offset > 0),
    page("Previous", Math.max(0, offset - limit), offset > 0),
    h("span", { key: "where" }, `${count(offset + 1)}–${count(Math.min(matched, offset + limit))} of ${count(matched)}`),
    page("Next", offset + limit, offset + limit < matched),
    page("Last", last, offset < last));
}
