// The slowest requests of the last minute, and where their time went.

import { breakdown } from "./chart.js";
import { copyButton, notify } from "./dialogs.js";
import { h } from "./dom.js";
import { slowParts } from "./facts.js";
import { clock, count, microseconds } from "./format.js";
import { badge, empty, section, versionLink } from "./parts.js";
import { request as send } from "./session.js";
import { messageOf } from "./stream.js";

// The mesh's recorded timeline, for `nereid timeline FILE`.
const TIMELINE = "/v2/nereid/timeline";
const SECONDS = 30;
const FILE = "nereid-timeline.raw";

export const title = () => "Slow requests";
export const query = () => ({ limit: 1 });

export function render({ facts, ui, refresh }) {
  const list = facts.slow_requests;
  return [
    h("h1", { tabindex: -1 }, "Slow requests"),
    h("p", { class: "quiet" }, "The slowest of the last minute at this gateway. Trace ids are of requests that are traced."),
    section("Timeline", timeline(facts, ui, refresh)),
    list.length === 0 ? empty("None in the last minute.") : h("ol", { class: "slowest" }, list.map((each) => one(each, facts, ui, refresh))),
  ];
}

// The button is shown only to a viewer who may trace all models' requests.
function timeline({ permissions, server }, ui, refresh) {
  const saved = `nereid timeline ${FILE} -o trace.pftrace`;
  const asked = `nereid timeline --url=${location.origin} --last=${SECONDS}s -o trace.pftrace`;
  const command = ui.saved ? saved : asked;
  return [
    h("p", null, `What the whole mesh did in the last ${SECONDS} seconds, step by step. The command writes a trace for Perfetto and says in words where time went.`),
    permissions.for_all_models.includes("trace")
      ? h("div", { class: "buttons" }, h("button", { type: "button", disabled: ui.saving === true, onclick: async () => {
        ui.saving = true;
        refresh();
        // The time of saving is kept, because later requests are not in the file.
        ui.saved = (await save()) && server.time_s;
        ui.saving = false;
        refresh();
      } }, ui.saving ? "Saving" : "Save the timeline"))
      : null,
    h("div", { class: "code" }, h("pre", { tabindex: 0, "aria-label": "The command" }, h("code", null, command)), copyButton(command, "the command")),
  ];
}

// Saves the timeline; returns whether that succeeded.
async function save() {
  try {
    const response = await send(`${TIMELINE}?last=${SECONDS}`);
    if (!response.ok) throw new Error(await messageOf(response));
    const url = URL.createObjectURL(await response.blob());
    const link = document.createElement("a");
    link.href = url;
    link.download = FILE;
    link.click();
    // The download begins after this turn of the event loop and needs the URL.
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    notify(`Saved ${FILE}.`);
    return true;
  } catch (error) {
    notify(`The timeline: ${error.message}`, true);
    return false;
  }
}

// Shows a button for a request's own timeline, and its command once the button was pressed.
function own(request, { permissions, server }, ui, refresh) {
  if (!request.number || !(server.timeline_seconds > 0) || !permissions.for_all_models.includes("trace")) return null;
  if (ui.request !== request.number) {
    return h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => {
      ui.request = request.number;
      refresh();
    } }, "Its timeline"));
  }
  const isSaved = request.time_s <= ui.saved && request.time_s > ui.saved - SECONDS;
  const from = isSaved ? FILE : `--url=${location.origin}`;
  const command = `nereid timeline ${from} --request=${request.number} -o request.pftrace`;
  return h("div", { class: "code" },
    h("pre", { tabindex: 0, "aria-label": "The command for this request" }, h("code", null, command)),
    copyButton(command, "the request's command"));
}

function one(request, all, ui, refresh) {
  const parts = slowParts(request.phases_us, request.duration_us).map((part) => ({ ...part, text: microseconds(part.value) }));
  const facts = [
    request.request_id ? `id ${request.request_id}` : null,
    request.batch_size ? `batch of ${count(request.batch_size)}` : null,
    request.instance ? `instance ${request.instance}` : null,
    request.attempt > 1 ? `attempt ${request.attempt}` : null,
  ].filter(Boolean);
  return h("li", { class: "card", key: `${request.time_s} ${request.model} ${request.request_id} ${request.duration_us}` },
    h("div", { class: "inline" },
      h("b", { class: "duration" }, microseconds(request.duration_us)),
      h("span", null, versionLink(request.model, request.version)),
      h("span", { class: "quiet" }, clock(request.time_s)),
      facts.length > 0 ? h("span", { class: "quiet" }, facts.join(" · ")) : null,
      request.error ? badge("bad", "error") : null),
    request.error ? h("p", { class: "reason" }, request.error) : null,
    parts.length > 0 ? breakdown(parts) : null,
    own(request, all, ui, refresh),
    request.trace_id
      ? h("p", { class: "inline" }, h("span", null, "Trace ", h("code", null, request.trace_id)), copyButton(request.trace_id, "the trace id"))
      : null);
}
