// An overview of the mesh.

import { h } from "./dom.js";
import { busyInstances, latencyParts, rowsOf, seesAll } from "./facts.js";
import { eventBadge, newestFirst, subject } from "./events.js";
import { bytes, clock, count, percent, plural, rate } from "./format.js";
import { address, badge, definitions, empty, modelLink, phases, schedulerTitle, section, stateBadge, table, tile } from "./parts.js";

export const title = () => "Overview";
// Failed models come first in the list, then those with the most errors; at most this many are shown.
export const query = () => ({ limit: 8, sort: "errors", events: 6 });

export function render({ facts, history }) {
  const { summary } = facts;
  const all = seesAll(facts);
  const instances = Object.values(facts.executors).reduce((sum, each) => sum + each.instances, 0);
  return [
    h("h1", { tabindex: -1 }, "Overview"),
    problems(facts),
    all ? null : h("p", { class: "quiet" }, "Figures are of the models that your key may see."),
    h("div", { class: "tiles" },
      tile("Requests", rate(summary.requests_per_s), "/s", history.of("requests")),
      tile("Errors", rate(summary.errors_per_s), "/s", history.of("errors")),
      tile("Waiting", count(summary.pending), "requests", history.of("pending"),
        summary.held > 0 ? `${count(summary.held)} for a first load` : ""),
      tile("Instances busy", count(busyInstances(facts)), `of ${count(instances)}`, history.of("busy"))),
    attention(facts),
    h("div", { class: "columns" },
      section("Mean latency by phase",
        phases(latencyParts(summary.latency_us), summary.latency_us?.request ?? 0, "a request, queue to output")),
      all ? section("Responses of this gateway", responses(summary)) : null,
      section("Models", models(facts)),
      section("Executors and devices", executors(facts)),
      section("Schedulers", schedulers(facts)),
      section("Latest events", latest(facts)),
      facts.cache?.capacity_bytes ? section("Response cache", cache(facts.cache)) : null),
  ];
}

function problems({ server, summary }) {
  const texts = [
    server.ready ? null : "The server is not ready.",
    server.draining ? "This gateway is draining." : null,
    summary.executors === 0 ? "No executor has joined the mesh: no model can be executed." : null,
    ...server.problems,
  ].filter(Boolean);
  if (texts.length === 0) return null;
  return h("ul", { class: "banner", key: "problems" }, texts.map((text) => h("li", { key: text }, text)));
}

function attention(facts) {
  const failing = rowsOf(facts).filter((row) => row.health === "failed" || row.health === "problem");
  if (failing.length === 0) return null;
  return section("Needs attention",
    h("ul", { class: "failing" }, failing.map((row) => {
      const problem = row.statements.find((each) => each.problem);
      return h("li", { key: row.key },
        h("p", null, modelLink(row.name, row.version), row.version ? ` version ${row.version} ` : " ", stateBadge(row)),
        h("p", { class: "said", tabindex: 0 }, problem?.text ?? row.reason),
        problem?.advice ? h("p", { class: "advice" }, problem.advice) : null);
    })));
}

function models({ summary }) {
  const states = Object.entries(summary.states).filter(([, number]) => number > 0);
  return [
    h("p", { class: "figure" }, h("b", null, count(summary.models)), h("span", { class: "unit" },
      summary.models === 1 ? "model" : "models")),
    h("ul", { class: "states" },
      states.map(([state, number]) => h("li", { key: state || "none" }, stateBadge({ state }), ` ${count(number)}`)),
      summary.failed > 0 ? h("li", { key: "failed" }, badge("bad", "failed"), ` ${count(summary.failed)}`) : null),
    h("p", null, h("a", { href: address("models") }, "All models")),
  ];
}

function responses(summary) {
  const rows = [...entries("HTTP", summary.http), ...entries("gRPC", summary.grpc)];
  return [
    rows.length === 0 ? empty("None in the last interval.") : table("Responses a second by status", [
      { title: "Protocol", cell: ([protocol]) => protocol },
      { title: "Status", cell: ([, status]) => status },
      { title: "A second", class: "number", cell: ([, , value]) => rate(value) },
    ], rows, ([protocol, status]) => `${protocol} ${status}`),
    definitions([
      ["HTTP connections", count(summary.http_connections)],
      ["gRPC connections", count(summary.grpc_connections)],
    ]),
  ];
}

function entries(protocol, statuses) {
  return Object.entries(statuses).map(([status, value]) => [protocol, status, value]);
}

function executors(facts) {
  const list = Object.values(facts.executors);
  if (list.length === 0) return empty("None has joined.");
  return [
    h("ul", { class: "rows" }, list.slice(0, 8).map((each) =>
      h("li", { key: each.name }, h("b", { class: "name", title: each.name }, each.title), h("span", null,
        `${count(each.busy)} of ${plural(each.instances, "instance")} busy`),
      h("span", { class: "quiet" }, each.devices.map((device) => device.name).join(", "))))),
    h("p", null, h("a", { href: address("executors") },
      list.length > 8 ? `All ${list.length} executors, devices and memory` : "Devices, memory and who has it")),
  ];
}

function schedulers(facts) {
  const list = Object.values(facts.schedulers);
  if (list.length === 0) return empty("None is known.");
  return [
    h("ul", { class: "rows" }, list.map((each) =>
      h("li", { key: each.name }, h("b", { class: "name", title: each.name }, schedulerTitle(each)),
        h("span", null, plural(each.models, "model")),
        each.reachable ? badge("good", "reachable") : badge("bad", "unreachable")))),
    h("p", null, h("a", { href: address("schedulers") }, "Who owns what")),
  ];
}

function latest(facts) {
  const list = newestFirst(facts);
  return [
    list.length === 0 ? empty("None yet.") : h("ul", { class: "rows" }, list.map((event) =>
      h("li", { key: event.key }, h("span", { class: "quiet" }, clock(event.time_s)), eventBadge(event), h("span", null, subject(event)),
        event.principal ? h("span", { class: "quiet" }, `by ${event.principal}`) : null))),
    h("p", null, h("a", { href: address("events") }, "All events")),
  ];
}

function cache(facts) {
  const asked = facts.hits_per_s + facts.misses_per_s;
  return definitions([
    ["Hits", `${rate(facts.hits_per_s)} /s${asked > 0 ? `, ${percent(facts.hits_per_s / asked)}` : ""}`],
    ["Misses", `${rate(facts.misses_per_s)} /s`],
    ["Hits ever", `${count(facts.hits)} of ${plural(facts.lookups, "lookup")}`],
    ["Entries", count(facts.entries)],
    ["Memory", `${bytes(facts.used_bytes)} of ${bytes(facts.capacity_bytes)}`],
    ["Evictions", count(facts.evictions)],
    facts.failures > 0 ? ["Failures", count(facts.failures)] : null,
  ]);
}
