// The slowest requests of the last minute, and where their time went.

import { legend, stack } from "./chart.js";
import { copyButton } from "./dialogs.js";
import { h } from "./dom.js";
import { slowParts } from "./facts.js";
import { clock, count, seconds } from "./format.js";
import { badge, empty, modelLink } from "./parts.js";

const COMMAND = "nereid timeline --last 30s";

export const title = () => "Slow requests";
export const query = () => ({ limit: 1 });

export function render({ facts }) {
  const list = facts.slow_requests;
  return [
    h("h1", { tabindex: -1 }, "Slow requests"),
    h("p", { class: "quiet" }, "The slowest of the last minute at this gateway. Trace ids are of requests that are traced."),
    list.length === 0 ? empty("None in the last minute.") : h("ol", { class: "slow" }, list.map(one)),
    h("section", { class: "card", "aria-label": "Timeline" },
      h("h2", null, "Timeline"),
      h("p", null, "What the whole mesh did meanwhile, as a file for Perfetto:"),
      h("div", { class: "code" }, h("pre", null, h("code", null, COMMAND)), copyButton(COMMAND, "the command"))),
  ];
}

function one(request) {
  const parts = slowParts(request.phases_us, request.duration_us).map((part) => ({ ...part, text: seconds(part.value / 1e6) }));
  const facts = [
    request.request_id ? `id ${request.request_id}` : null,
    request.batch_size ? `batch of ${count(request.batch_size)}` : null,
    request.instance ? `instance ${request.instance}` : null,
    request.attempt > 1 ? `attempt ${request.attempt}` : null,
  ].filter(Boolean);
  return h("li", { class: "card", key: `${request.time_s} ${request.model} ${request.request_id} ${request.duration_us}` },
    h("div", { class: "inline" },
      h("b", { class: "duration" }, seconds(request.duration_us / 1e6)),
      h("span", null, modelLink(request.model, request.version), request.version ? h("span", { class: "quiet" }, ` v${request.version}`) : null),
      h("span", { class: "quiet" }, clock(request.time_s)),
      request.error ? badge("bad", "error") : null),
    request.error ? h("p", { class: "reason" }, request.error) : null,
    facts.length > 0 ? h("p", { class: "quiet" }, facts.join(" · ")) : null,
    parts.length > 0 ? [stack(parts, parts.map((part) => `${part.name} ${part.text}`).join(", ")), legend(parts)] : null,
    request.trace_id
      ? h("p", { class: "inline" }, h("span", null, "Trace ", h("code", null, request.trace_id)), copyButton(request.trace_id, "the trace id"))
      : null);
}
