// Components that several views use.

import { breakdown, sparkline } from "./chart.js";
import { h } from "./dom.js";
import { microseconds } from "./format.js";

// Returns the address of a view with parameters; empty ones and zeros are left out.
export function address(view, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== 0));
  return `#/${view}${query.size > 0 ? `?${query}` : ""}`;
}

export function modelLink(name, version, text = name) {
  return h("a", { href: address("model", { name, version: version ?? "" }), class: "name" }, text);
}

export function versionLink(name, version) {
  return [modelLink(name, version), version ? h("span", { class: "quiet" }, ` v${version}`) : null];
}

// A mesh's only scheduler has no name of its own.
export function schedulerTitle({ name, host_name: host }) {
  return name === "scheduler" && host ? host : name;
}

const MARKS = { READY: "good", LOADING: "busy", UNLOADING: "busy", UNAVAILABLE: "bad", "": "quiet" };

// Shows a state in words with a mark beside it, because not everybody sees colours.
export function stateBadge(row) {
  let [mark, text] = [MARKS[row.state] ?? "quiet", row.state || "not loaded"];
  if (row.state === "READY" && row.in_memory === false) [mark, text] = ["quiet", "READY on demand"];
  if (row.state === "UNAVAILABLE" && row.health !== "failed") mark = "quiet";
  if (row.state === "READY" && row.health === "problem") mark = "warn";
  return badge(mark, text);
}

const PATHS = {
  good: "M3 8.5 6.5 12 13 4.5",
  bad: "M4 4 12 12M12 4 4 12",
  busy: "M8 3V8L11 10",
  quiet: "M4 8H12",
  warn: "M8 3.5V9M8 11.5V12.5",
};

export function badge(mark, text) {
  return h("span", { class: `badge ${mark}` }, icon(mark), text);
}

export function icon(mark) {
  return h("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, h("path", { d: PATHS[mark] }));
}

export function tile(name, value, unit, history, note = "") {
  return h(
    "div",
    { class: "tile", key: name },
    h("h2", null, name),
    h("p", { class: "figure" }, h("b", null, value), unit ? h("span", { class: "unit" }, unit) : null),
    history ? sparkline(history, `${name}, the last ${history.length} looks`) : null,
    h("p", { class: "note" }, note || "\u00a0"),
  );
}

// Returns a text that may be part of an id and that no other text results in.
export function idOf(text) {
  return Array.from(text, (each) => (/[a-z0-9]/i.test(each) ? each : `_${each.codePointAt(0).toString(16)}_`)).join("");
}

export function section(title, ...children) {
  const id = `section-${idOf(title)}`;
  return h("section", { class: "card", key: id, "aria-labelledby": id }, h("h2", { id }, title), children);
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

// Shows the phases of a request's mean duration.
export function phases(parts, totalUs, label) {
  if (parts.length === 0) return empty("No requests in the last interval.");
  const named = parts.map((part) => ({ ...part, text: microseconds(part.value) }));
  return h("div", { class: "phases" },
    h("p", { class: "figure" }, h("b", null, microseconds(totalUs)), h("span", { class: "unit" }, label)),
    breakdown(named));
}

// Wraps content so that the keyboard can scroll it as well.
function scrollable(name, content) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, content);
}

// Shows a text when the viewer opens it.
export function foldedText(name, text) {
  return h("details", { key: name }, h("summary", null, name), scrollable(name, h("pre", null, text)));
}

// Shows a table. columns: [{ title, class, cell(row) }]; the first one is the row's header. A narrow
// page lays "stacked" rows out as blocks, so that screen readers need the roles to see a table.
export function table(caption, columns, rows, keyOf, kind = "") {
  return scrollable(caption,
    h("table", { role: "table", class: kind },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
        columns.map((column) => h("th", { role: "columnheader", scope: "col", class: column.class, "aria-sort": column.sort ?? null }, column.head ?? column.title)))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { key: keyOf(row), role: "row" }, columns.map((column, index) =>
        index === 0
          ? h("th", { role: "rowheader", scope: "row", class: column.class }, column.cell(row))
          : h("td", { role: "cell", class: column.class, "data-title": column.title }, column.cell(row))))))));
}

// Shows the statements of `nereid explain`.
export function statements(list) {
  if (list.length === 0) return empty("Nothing to say.");
  return h("ul", { class: "statements" }, list.map((each, index) =>
    h("li", { key: `${each.code} ${index}`, class: each.problem ? "problem" : "" },
      icon(each.problem ? "warn" : "quiet"),
      h("div", null,
        h("p", { class: "said" }, each.problem ? h("span", { class: "unseen" }, "Problem: ") : null, each.text),
        each.advice ? h("p", { class: "advice" }, each.advice) : null))));
}

export function definitions(entries) {
  return h("dl", { class: "definitions" }, entries.filter(Boolean).map(([name, value]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}
