// What has happened in the mesh: loads and unloads, who asked for them, and what was lost.

import { h } from "./dom.js";
import { clock, count, microseconds } from "./format.js";
import { address, badge, empty, modelLink, table } from "./parts.js";

const MOST = 500;
// Drawn at first: a table of all is slow on a phone.
const FIRST = 100;
const KINDS = {
  all: ["All", () => true],
  problems: ["Problems", (event) => event.problem],
  models: ["Models", (event) => event.model !== undefined],
  mesh: ["Executors and schedulers", (event) => event.model === undefined],
};

export const title = () => "Events";
export const query = () => ({ limit: 1, events: MOST });

export function render({ facts, parameters }) {
  const chosen = Object.hasOwn(KINDS, parameters.kind ?? "") ? parameters.kind : "all";
  const all = newestFirst(facts);
  const fitting = all.filter(KINDS[chosen][1]);
  const shown = parameters.all ? fitting : fitting.slice(0, FIRST);
  const columns = Object.keys(facts.schedulers).length > 1 ? [...COLUMNS, SCHEDULER] : COLUMNS;
  return [
    h("h1", { tabindex: -1 }, "Events"),
    h("nav", { class: "tabs", "aria-label": "Kinds of events" }, Object.entries(KINDS).map(([kind, [name, fits]]) =>
      h("a", { key: kind, href: address("events", { kind: kind === "all" ? "" : kind }), "aria-current": kind === chosen ? "page" : null },
        `${name} `, h("span", { class: "quiet" }, count(all.filter(fits).length))))),
    h("p", { class: "quiet" }, `The last ${count(MOST)} that the schedulers have seen since they started.`),
    shown.length === 0 ? empty("None yet.") : table("Events, the newest first", columns, shown, (event) => event.key, "stacked events"),
    shown.length < fitting.length ? h("p", null, h("a", { href: address("events", { ...parameters, all: 1 }) }, `All ${count(fitting.length)}`)) : null,
  ];
}

export function newestFirst(facts) {
  return Object.entries(facts.events ?? {})
    .map(([key, event]) => ({ key, ...event }))
    .toSorted((one, other) => other.time_s - one.time_s);
}

const SCHEDULER = { title: "Scheduler", class: "quiet wide", cell: (event) => event.scheduler };
const COLUMNS = [
  { title: "Time", class: "time", cell: (event) => h("time", { datetime: new Date(event.time_s * 1000).toISOString(), title: new Date(event.time_s * 1000).toString() }, clock(event.time_s)) },
  { title: "Event", cell: (event) => eventBadge(event) },
  { title: "Of", class: "of", cell: (event) => subject(event) },
  { title: "Why", class: "why", cell: (event) => why(event) },
  { title: "By", cell: (event) => event.principal ?? "" },
];

export function eventBadge(event) {
  return badge(event.problem ? "bad" : "quiet", event.what);
}

export function subject(event) {
  const version = /version (\d+)$/.exec(event.subject)?.[1];
  return event.model === undefined ? h("span", { class: "name" }, event.subject)
    : [modelLink(event.model, version), version ? h("span", { class: "quiet" }, ` v${version}`) : null];
}

function why(event) {
  const quiet = [event.cause, event.duration_us ? `took ${microseconds(event.duration_us)}` : null].filter(Boolean).join("; ");
  return [
    event.detail && event.detail !== "unloaded" ? h("div", { class: event.problem ? "said reason" : "said", tabindex: event.problem ? 0 : null }, event.detail) : null,
    quiet ? h("div", { class: "quiet" }, quiet) : null,
  ];
}
