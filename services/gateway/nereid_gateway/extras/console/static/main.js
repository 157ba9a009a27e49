// The page: which view is shown, the stream of facts, the key, the theme, the keyboard.

import { announce } from "./dialogs.js";
import { h, update } from "./dom.js";
import { busyInstances, History, merge, rowsOf } from "./facts.js";
import { clock } from "./format.js";
import { address, empty, icon } from "./parts.js";
import { key, request as send, setKey } from "./session.js";
import { Stream } from "./stream.js";
import * as events from "./events.js";
import * as executors from "./executors.js";
import * as model from "./model.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as request from "./request.js";
import * as schedulers from "./schedulers.js";
import * as slow from "./slow.js";

const VIEWS = { overview, models, model, executors, schedulers, slow, events, request };
// Views of the navigation, with the keys that open them after a g.
const PLACES = [
  ["overview", "Overview", "o"], ["models", "Models", "m"], ["executors", "Executors", "e"],
  ["schedulers", "Schedulers", "s"], ["slow", "Slow requests", "l"],
  ["events", "Events", "v"],
];
// The navigation marks the list of models while a view of one model is shown.
const WITHIN = { model: "models", request: "models" };
const SILENCE_MS = 10_000;
const STATES = {
  connecting: ["busy", "Connecting"], live: ["good", "Live"], stale: ["warn", "Stale"],
  reconnecting: ["bad", "Reconnecting"], refused: ["bad", "No access"], paused: ["quiet", "Paused"],
};

const history = new History();
let place = { view: "overview", parameters: {} };
let ui = {};
let facts = null;
// The query of the stream. A view that needs another query waits until the facts respond to it.
let asked = "";
let connection = { state: "connecting", error: null };
let stream = null;
let drawing = 0;

function route() {
  const [, path = "", search = ""] = /^#\/([^?]*)\??(.*)$/s.exec(location.hash) ?? [];
  const view = Object.hasOwn(VIEWS, path) ? path : "overview";
  return { view, parameters: Object.fromEntries(new URLSearchParams(search)) };
}

function onNavigation() {
  const before = place;
  place = route();
  const sameView = before.view === place.view && before.parameters.name === place.parameters.name;
  if (!sameView) {
    ui = {};
    history.keep("requests", "errors", "pending", "busy", `${place.parameters.name ?? ""}`);
  }
  connect();
  document.title = `${VIEWS[place.view].title(place.parameters)} – Nereid`;
  draw();
  if (!sameView) {
    scrollTo(0, 0);
    render();
    document.querySelector("main h1")?.focus();
    document.querySelector("#places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function connect() {
  const query = String(new URLSearchParams(VIEWS[place.view].query(place.parameters)));
  if (stream && query === asked) return;
  asked = query;
  stream?.stop();
  let fresh = null;
  stream = new Stream((signal) => send(`/console/stream?${query}`, { signal }), {
    onEvent: ({ event, data }) => {
      if (event === "snapshot") fresh = JSON.parse(data);
      else if (event === "patch" && fresh) fresh = merge(fresh, JSON.parse(data));
      else return;
      onFacts(fresh, query);
    },
    onState: onConnection,
  }, () => Math.max(SILENCE_MS, 3000 * (facts?.server.interval_s ?? 0)));
  if (!document.hidden) stream.start();
}

function onFacts(fresh, query) {
  facts = { ...fresh, query };
  const { summary, server } = facts;
  history.record("requests", server.time_s, summary.requests_per_s);
  history.record("errors", server.time_s, summary.errors_per_s);
  history.record("pending", server.time_s, summary.pending);
  history.record("busy", server.time_s, busyInstances(facts));
  for (const row of place.view === "model" ? rowsOf(facts) : []) {
    history.record(`${row.key} requests`, server.time_s, row.rates?.requests);
    history.record(`${row.key} errors`, server.time_s, row.rates?.errors);
    history.record(`${row.key} rows`, server.time_s, row.batches?.mean_rows);
    history.record(`${row.key} pending`, server.time_s, row.queue?.pending);
  }
  draw();
}

function onConnection(state, error) {
  if (state === connection.state && error === connection.error) return;
  const news = state !== connection.state && (state !== "connecting" && !(state === "live" && connection.state === "connecting"));
  connection = { state, error };
  if (news) announce(`Connection: ${STATES[state][1]}.`);
  draw();
}

// Draws at most once per frame, however many events have come. Input of the viewer is shown at once
// by render() instead, because a late frame would overwrite a field in the middle of the next input.
function draw() {
  if (drawing) return;
  drawing = requestAnimationFrame(render);
}

function render() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const shown = WITHIN[place.view] ?? place.view;
  update(document.getElementById("places"), PLACES.map(([view, name]) =>
    h("li", { key: view }, h("a", { href: address(view), "aria-current": view === shown ? "page" : null }, name))));
  update(document.getElementById("connection"), connectionBadge());
  update(document.getElementById("viewer"), viewer());
  const { name, version } = facts?.server ?? {};
  // A server is called "triton" unless its operator names it, so that this name says nothing.
  update(document.getElementById("mesh"), version ? (name === "triton" ? version : `${name} ${version}`) : "");
  update(document.querySelector("main"), content());
}

function connectionBadge() {
  const [mark, text] = STATES[connection.state];
  const since = facts && connection.state !== "live" ? `, as of ${clock(facts.server.time_s)}` : "";
  return h("span", { class: `badge ${mark}`, title: connection.error?.message ?? null }, icon(mark), text, h("span", { class: "wide" }, since));
}

function viewer() {
  const name = facts?.permissions.principal;
  return [
    name ? h("span", { class: "quiet wide" }, name) : null,
    key() ? h("button", { type: "button", onclick: () => enter("") }, "Forget key") : null,
  ];
}

function content() {
  if (connection.state === "refused") return h("div", { key: "refused" }, refused());
  // Some views show only facts of their own query.
  const ready = facts && (facts.query === asked || ["overview", "models", "executors", "schedulers", "slow"].includes(place.view));
  if (!ready) {
    return h("div", { key: "waiting" }, h("h1", { tabindex: -1 }, VIEWS[place.view].title(place.parameters)),
      connection.state === "reconnecting"
        ? h("p", { class: "banner" }, `The gateway cannot be reached: ${connection.error?.message ?? "the connection ended"}. Trying again.`)
        : empty("Waiting for the first facts."));
  }
  const context = { facts, history, parameters: place.parameters, ui, refresh: render, draw, replace };
  return h("div", { key: place.view + (place.parameters.name ?? ""), class: `view ${place.view}` }, VIEWS[place.view].render(context));
}

function refused() {
  const { status, message } = connection.error;
  return h("form", {
    class: "card key", onsubmit: (event) => {
      event.preventDefault();
      enter(event.target.elements.key.value.trim());
    },
  },
  h("h1", { tabindex: -1 }, status === 401 ? "This mesh asks for a key" : "Your key may not see the console"),
  h("p", null, status === 401 ? (key() ? "The key that you gave is not valid here." : "The gateway shows the console to keys with the right console.")
    : "It needs the right console. Another key may have it."),
  h("p", { class: "quiet" }, message),
  h("label", { for: "key" }, "Key or token"),
  h("input", { id: "key", name: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true }),
  h("p", { class: "quiet" }, "For an API that is restricted by a header: NAME: VALUE. It is kept until you close this tab, and sent to this gateway alone."),
  h("button", { class: "main" }, "Open the console"));
}

function enter(text) {
  setKey(text);
  facts = null;
  stream?.stop();
  stream = null;
  connect();
  draw();
}

// Changes the address within the same view, without an entry in the browser's history.
function replace(href) {
  globalThis.history.replaceState(null, "", href);
  onNavigation();
}

// ---- theme

const THEME = "nereid-theme";

function setTheme(theme) {
  if (theme === "auto") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, theme);
  showTheme();
}

function showTheme() {
  const theme = localStorage.getItem(THEME) ?? "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").value = theme;
}

// ---- keyboard

const SHORTCUTS = "nereid-shortcuts";
let leader = 0;

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
  if (localStorage.getItem(SHORTCUTS) === "off") return;
  if (event.key === "?") {
    openHelp();
  } else if (event.key === "/") {
    event.preventDefault();
    if (place.view === "models") document.getElementById("search")?.focus();
    else {
      location.hash = address("models");
      // The view appears in the next frame.
      setTimeout(() => document.getElementById("search")?.focus(), 50);
    }
  } else if (event.key === "g") {
    leader = event.timeStamp;
  } else if (event.timeStamp - leader < 1500) {
    leader = 0;
    const found = PLACES.find(([, , letter]) => letter === event.key);
    if (found) location.hash = address(found[0]);
  }
}

function openHelp() {
  const dialog = document.getElementById("help");
  update(dialog.querySelector("dl"), [
    ["/", "Search models"], ...PLACES.map(([, name, letter]) => [`g ${letter}`, name]), ["?", "This help"], ["Esc", "Close a dialog"],
  ].map(([keys, what]) => h("div", { key: keys }, h("dt", null, keys.split(" ").map((each) => h("kbd", null, each))), h("dd", null, what))));
  document.getElementById("shortcuts").checked = localStorage.getItem(SHORTCUTS) !== "off";
  dialog.showModal();
}

// ---- start

document.getElementById("theme").addEventListener("change", (event) => setTheme(event.target.value));
document.getElementById("open-help").addEventListener("click", openHelp);
document.getElementById("shortcuts").addEventListener("change", (event) => {
  if (event.target.checked) localStorage.removeItem(SHORTCUTS);
  else localStorage.setItem(SHORTCUTS, "off");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("main").focus();
});
document.addEventListener("keydown", onKey);
// A hidden page ends its stream, so that it costs the gateway nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.stop();
    onConnection("paused", null);
  } else {
    stream?.start();
  }
});
addEventListener("hashchange", onNavigation);
showTheme();
onNavigation();
