// Loads and unloads models and drains executors, after the viewer has confirmed it.

import { announce, confirmed, notify } from "./dialogs.js";
import { h } from "./dom.js";
import { request } from "./session.js";
import { messageOf } from "./stream.js";
import { fitsPath } from "./wire.js";

const MODEL = "A browser cannot have this model's name in a URL: load and unload it over gRPC.";
const EXECUTOR = "A browser cannot have this executor's name in a URL: end its process with SIGTERM.";

export function loadButton(context, { name, state }) {
  const again = state === "READY";
  return button(context, {
    name, path: `/v2/repository/models/${encodeURIComponent(name)}/load`, unfit: MODEL,
    verb: again ? "Reload" : "Load", done: "loaded",
    question: again
      ? "Its files are read again. The version that serves goes on until the new one is ready."
      : "Its newest versions are loaded, as its version policy says.",
  });
}

export function unloadButton(context, { name, state }) {
  if (state !== "READY" && state !== "LOADING") return null;
  return button(context, {
    name, path: `/v2/repository/models/${encodeURIComponent(name)}/unload`, unfit: MODEL,
    verb: "Unload", done: "unloaded", dangerous: true,
    question: "Requests that it has accepted complete; new ones are refused until it is loaded again.",
  });
}

export function drainButton(context, { name }) {
  return button(context, {
    name, path: `/v2/nereid/executors/${encodeURIComponent(name)}/drain`, unfit: EXECUTOR,
    label: `Drain ${name}`, verb: "Drain", done: "leaving the mesh", dangerous: true,
    question: "It completes its batches and its process ends; what restarts processes starts it anew. "
      + "Requests go to other executors.",
    insist: { named: "allow_last", question: "Requests to its models wait until another executor serves them." },
  });
}

function button({ ui, refresh }, { name, path, unfit, label, verb, done, question, dangerous = false, insist = null }) {
  // While an action on a model or executor runs, all buttons of that subject are disabled.
  const subject = path.slice(0, path.lastIndexOf("/"));
  return h("button", {
    type: "button", key: path, class: dangerous ? "dangerous" : null, disabled: ui.doing === subject,
    "aria-label": label ?? null,
    onclick: async () => {
      if (!fitsPath(name)) {
        notify(unfit, true);
        return;
      }
      if (!(await confirmed(`${verb} ${name}?`, question, verb, dangerous))) return;
      ui.doing = subject;
      refresh();
      announce(`${verb} of ${name} has begun.`);
      try {
        let refusal = await refusalOf(path);
        if (insist && refusal?.includes(insist.named)) {
          if (!(await confirmed(`${verb} ${name}, the last one?`, insist.question, verb, dangerous))) return;
          refusal = await refusalOf(`${path}?${insist.named}=true`);
        }
        if (refusal !== null) throw new Error(refusal);
        notify(`${name} is ${done}.`);
      } catch (error) {
        notify(`${verb} of ${name}: ${error.message}`, true);
      } finally {
        ui.doing = null;
        refresh();
      }
    },
  }, verb);
}

// Sends a POST; returns the error message if it is refused, and null otherwise.
async function refusalOf(path) {
  const response = await request(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: "{}",
  });
  return response.ok ? null : await messageOf(response);
}
