// One model: its versions, their states and the reasons for them, their load and configuration.

import { bars, breakdown, sparkline } from "./chart.js";
import { loadButton, unloadButton } from "./control.js";
import { lines } from "./diff.js";
import { h } from "./dom.js";
import { CLOSING_REASONS, latencyParts, may, rowsOf } from "./facts.js";
import { bytes, clock, count, microseconds, percent, plural, rate, seconds } from "./format.js";
import { address, badge, definitions, empty, foldedText, icon, phases, section, stateBadge, statements, table, tile, versionLink } from "./parts.js";

export const title = ({ name }) => name ?? "Model";
export const query = ({ name }) => ({ model: name ?? "" });

export function render(context) {
  const { facts, parameters, history } = context;
  const rows = rowsOf(facts).filter((row) => row.name === parameters.name);
  const row = rows.find((each) => each.version === parameters.version) ?? newest(rows);
  const head = h("h1", { tabindex: -1, class: "name" }, parameters.name);
  if (!row) {
    const said = facts.details?.explanation?.statements ?? [];
    return [head, said.length > 0 ? statements(said) : empty("No repository of this mesh has a model of this name.")];
  }
  const about = facts.details?.model === row.name ? facts.details : null;
  const steps = about?.steps?.[row.version];
  return [
    h("div", { class: "heading" }, head, stateBadge(row), actions(context, row)),
    versions(rows, row),
    row.reason ? h("p", { class: "reason" }, row.reason) : null,
    about?.diagnoses?.[row.version]?.length > 0 ? section("Why it is slow", diagnoses(about.diagnoses[row.version])) : null,
    section("Explained", statements(row.statements)),
    row.rates ? live(row, history, steps !== undefined) : null,
    row.recent ? section("The last 30 minutes", recent(row, about?.minutes?.[row.version] ?? [])) : null,
    steps ? section("Steps", graph(steps)) : null,
    row.rates ? h("div", { class: "columns" },
      section("Mean latency by phase",
        phases(latencyParts(row.latency_us), row.latency_us?.request ?? 0, "a request, queue to output")),
      section("Queue", queue(row)),
      // An ensemble's requests are batched by the models of its steps.
      steps ? null : [section("Batch sizes", sizes(row)), section("Why batches closed", closed(row))],
      section("Since the load", totals(row)),
      section("Memory and placement", placement(row))) : null,
    about?.batches && !steps ? section("Batches at its instances", batches(about.batches[row.version] ?? [], context.ui, row.version)) : null,
    about ? section("Configuration", configuration(about.versions?.[row.version])) : null,
  ];
}

function newest(rows) {
  return rows.toSorted((one, other) => Number(other.version) - Number(one.version))[0];
}

function actions(context, row) {
  const { facts } = context;
  return h("div", { class: "buttons" },
    may(facts, row, "inference")
      ? h("a", { class: "button main", href: address("request", { name: row.name, version: row.version }), key: "request" }, "Send a request")
      : null,
    may(facts, row, "model-repository") ? [loadButton(context, row), unloadButton(context, row)] : null);
}

function versions(rows, shown) {
  if (rows.length < 2 && !shown.version) return null;
  return h("nav", { class: "tabs", "aria-label": "Versions" }, rows.map((row) =>
    h("a", {
      key: row.version, href: address("model", { name: row.name, version: row.version }),
      "aria-current": row === shown ? "page" : null,
    }, `Version ${row.version || "–"}`, rows.length > 1 ? [" ", stateBadge(row)] : null)));
}

// Shows the causes that `nereid doctor` finds, with their remedies to copy.
function diagnoses(list) {
  return h("ul", { class: "statements" }, list.map((each) =>
    h("li", { key: each.code, class: "problem" }, icon("warn"),
      h("div", null,
        h("p", { class: "said" }, each.evidence),
        h("p", { class: "advice" }, each.advice,
          each.remedy ? [" ", h("code", null, each.remedy)] : null,
          each.gain ? `, ${each.gain}` : null,
          each.command ? ["; ", h("code", null, each.command), " measures it"] : null)))));
}

function live(row, history, isEnsemble) {
  const of = (name) => history.of(`${row.key} ${name}`);
  return h("div", { class: "tiles" },
    tile("Requests", rate(row.rates.requests), "/s", of("requests"), row.rates.refused > 0 ? `${rate(row.rates.refused)} /s refused` : ""),
    tile("Errors", rate(row.rates.errors), "/s", of("errors")),
    isEnsemble ? null : tile("Rows in a batch", row.batches?.mean_rows ? rate(row.batches.mean_rows) : "–",
      row.batches?.max_batch_size ? `of ${count(row.batches.max_batch_size)}` : "", of("rows"), `${rate(row.rates.executions)} batches a second`),
    tile("Waiting", count(row.queue?.pending ?? 0), "requests", of("pending")));
}

// Shows the quantiles of the last 30 minutes, and how p99 and the rate were in each of them.
function recent({ recent: half }, minutes) {
  const of = (value) => {
    const values = Array(30).fill(null);
    for (const minute of minutes) values[29 - minute.age] = value(minute);
    return values;
  };
  const line = (text, values) => (minutes.length > 0 ? h("div", null, sparkline(values, text, 30), h("p", { class: "note" }, text)) : null);
  return [
    h("div", { class: "quantiles" },
      definitions([
        ["p50", microseconds(half.p50_us)], ["p95", microseconds(half.p95_us)], ["p99", microseconds(half.p99_us)],
        ["Requests", `${count(half.requests)}, ${rate(half.requests_per_s)} /s`],
        half.errors + half.refused > 0
          ? ["Errors", h("span", { class: "bad-text" }, `${count(half.errors + half.refused)} (${percent((half.errors + half.refused) / (half.requests + half.errors + half.refused))})`)]
          : null,
      ]),
      line(`p99 by minute, at most ${microseconds(Math.max(0, ...minutes.map((each) => each.p99_us)))}`, of((each) => (each.requests > 0 ? each.p99_us : null))),
      line(`requests by minute, at most ${count(Math.max(0, ...minutes.map((each) => each.requests)))}`, of((each) => each.requests))),
  ];
}

// Shows an ensemble's steps in columns: a step stands right of all whose outputs it reads.
function graph(steps) {
  const columns = [];
  const known = new Map();
  const columnOf = (step) => {
    if (!known.has(step)) known.set(step, 1 + Math.max(-1, ...step.after.map((source) => columnOf(steps[source]))));
    return known.get(step);
  };
  steps.forEach((step, index) => (columns[columnOf(step)] ??= []).push({ ...step, number: index + 1 }));
  const most = Math.max(...steps.map((step) => step.mean_us ?? 0), 1);
  return [
    h("ol", { class: "graph" }, columns.map((column, place) => h("li", { key: place }, h("ul", null, column.map((step) => stepOf(step, most)))))),
    h("p", { class: "note" }, "Times of the ensemble's own requests, with their wait for the step's model: p50 and p99 of the last 30 minutes, the mean since the load."),
  ];
}

function stepOf(step, most) {
  const { number, after, requests, errors, mean_us: mean } = step;
  return h("li", { key: number, class: "step" },
    h("p", null, h("span", { class: "quiet" }, `${number} `), versionLink(step.model, step.version)),
    after.length > 0 ? h("p", { class: "note" }, `reads from ${after.map((source) => source + 1).join(", ")}`) : null,
    step.condition ? h("p", { class: "note" }, `if ${step.condition}`) : null,
    requests === undefined && errors === undefined ? h("p", { class: "quiet" }, "No requests.") : [
      breakdown([{ name: "mean", value: mean, text: microseconds(mean), tone: 3 }], most, `Step ${number}: `),
      definitions([
        ["p50", microseconds(step.p50_us)], ["p99", microseconds(step.p99_us)], ["Requests", count(requests)],
        errors > 0 ? ["Errors", h("span", { class: "bad-text" }, count(errors))] : null,
      ]),
    ]);
}

function queue(row) {
  const { pending = 0, waits_for: waitsFor = "" } = row.queue ?? {};
  const { free = 0, busy = 0 } = row.instances ?? {};
  return [
    pending > 0
      ? h("p", null, h("b", null, plural(pending, "request")), pending === 1 ? " waits" : " wait", waitsFor ? ` for ${waitsFor}` : "")
      : empty("Nothing waits."),
    definitions([
      ["Instances", busy + free > 0 ? `${count(busy)} busy, ${count(free)} free` : "none of its own"],
      row.sequences ? ["Sequences", Object.entries(row.sequences).map(([name, number]) => `${count(number)} ${name}`).join(", ")] : null,
      row.target?.target_us ? ["Target p99", `${microseconds(row.target.target_us)}, held ${microseconds(row.target.held_us)}`] : null,
      row.target?.target_us ? ["Chosen for it", `batches of ${count(row.target.batch_size)}, delay ${microseconds(row.target.delay_us)}`] : null,
    ]),
  ];
}

function sizes(row) {
  const all = Object.entries(row.batches?.sizes ?? {});
  const used = all.map(([, number]) => number > 0);
  const shown = all.slice(0, used.lastIndexOf(true) + 1);
  if (shown.length === 0) return empty("No batch was executed yet.");
  const sum = shown.reduce((total, [, number]) => total + number, 0);
  return bars(shown.map(([bound, number], index) => {
    const below = index === 0 ? 0 : Number(shown[index - 1][0]);
    const name = bound === "+Inf" ? `more than ${below}` : Number(bound) === below + 1 ? bound : `${below + 1}–${bound}`;
    return { name, value: number, text: `${count(number)} (${percent(number / sum)})` };
  }), "Batches by rows, since the load");
}

function closed(row) {
  const all = Object.entries(row.batches?.closed ?? {}).filter(([, number]) => number > 0);
  if (all.length === 0) return empty("No batch was closed yet.");
  const sum = all.reduce((total, [, number]) => total + number, 0);
  all.sort(([, one], [, other]) => other - one);
  return [
    bars(all.map(([reason, number]) => ({ name: reason, value: number, text: `${count(number)} (${percent(number / sum)})` })),
      "Batches by why they were closed, since the load"),
    h("ul", { class: "reasons" }, all.map(([reason]) =>
      h("li", { key: reason }, h("b", null, reason), ` ${CLOSING_REASONS[reason] ?? ""}`))),
  ];
}

function totals(row) {
  const failures = Object.entries(row.failures ?? {}).filter(([, number]) => number > 0);
  const cached = (row.cache?.hits ?? 0) + (row.cache?.misses ?? 0);
  return definitions([
    ...Object.entries(row.totals ?? {}).map(([name, number]) => [name.replaceAll("_", " "), count(number)]),
    ...failures.map(([reason, number]) => [`failed: ${reason}`, h("span", { class: "bad-text" }, count(number))]),
    cached > 0 ? ["cache hits", `${count(row.cache.hits)} of ${count(cached)} (${percent(row.cache.hits / cached)})`] : null,
  ]);
}

function placement(row) {
  const memory = Object.entries(row.memory_bytes ?? {});
  return definitions([
    ...memory.map(([device, size]) => [device, bytes(size)]),
    memory.length === 0 ? ["Memory", "not measured"] : null,
    row.load_seconds === undefined ? null : ["Load took", seconds(row.load_seconds)],
    row.scheduler ? ["Scheduler", h("a", { href: address("schedulers") }, row.scheduler)] : null,
  ]);
}

// Shows the batches that are executed now. If there are none, it shows the last ones that the page
// saw, because most batches end before anyone has read them.
function batches(list, ui, version) {
  if (list.length > 0) ui.batches = { version, list: list.slice(0, 8) };
  const seen = ui.batches?.version === version ? ui.batches.list : [];
  if (seen.length === 0) return empty("Nothing is executed at this moment.");
  return [list.length > 0 ? h("p", { class: "quiet" }, "Executed at this moment:") : h("p", { class: "quiet" }, "Nothing is executed at this moment. The last that this page saw:"),
    seen.map(batchOf)];
}

function batchOf(batch, index) {
  const members = batch.members ?? [];
  return h("details", { key: `${batch.instance} ${index}`, class: "batch" },
    h("summary", null,
      h("span", null, clock(batch.time_s)), h("b", null, plural(batch.rows ?? 0, "row")),
      h("span", null, plural(members.length, "request")),
      h("span", null, `for ${microseconds(batch.duration_us)}`),
      batch.reason ? badge("quiet", batch.reason) : null,
      h("span", { class: "quiet name" }, batch.instance)),
    members.length === 0 ? empty("Its requests are not known.") : table(`Requests of the batch at ${clock(batch.time_s)}`, [
      { title: "Request", cell: (member) => member.request_id || h("span", { class: "quiet" }, "no id") },
      { title: "Rows", class: "number", cell: (member) => count(member.rows) },
      { title: "Waited", class: "number", cell: (member) => microseconds(member.queue_us) },
    ], members.map((member, place) => ({ ...member, place })), (member) => member.place));
}

function configuration(config) {
  if (!config) return empty("It is not known: it is no ready version, or your key has no right to it.");
  const differences = lines(config.differences ?? []);
  return [
    differences.length === 0
      ? empty("In effect is what was declared.")
      : [
        h("p", { class: "quiet" }, "Where the configuration in effect is not what config.pbtxt says:"),
        table("Declared against effective configuration", DIFFERENCE, differences, (each) => each.field, "stacked diff"),
      ],
    whole("The configuration in effect", config.effective),
    whole("The configuration as declared", config.declared),
  ];
}

const MARKS = { added: ["+", "filled in"], removed: ["−", "without effect"], changed: ["~", "changed"] };

const DIFFERENCE = [
  { title: "Field", cell: ({ field, kind }) => {
    const [mark, meaning] = MARKS[kind];
    return [h("span", { class: `mark ${kind}`, title: meaning, role: "img", "aria-label": meaning }, mark), h("code", null, field)];
  } },
  { title: "Declared", cell: ({ declared, kind }) =>
    (declared === null ? h("span", { class: "quiet" }, "not given") : h("code", { class: `before ${kind}` }, declared)) },
  { title: "In effect", cell: ({ effective, kind }) =>
    (effective === null ? h("span", { class: "quiet" }, "not there") : h("code", { class: kind }, effective)) },
];

function whole(name, document) {
  if (!document || Object.keys(document).length === 0) return null;
  return foldedText(name, JSON.stringify(document, null, 2));
}
