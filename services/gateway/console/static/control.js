// Loads and unloads models, after a question.

import { announce, confirmed, notify } from "./dialogs.js";
import { h } from "./dom.js";
import { request } from "./session.js";
import { messageOf } from "./stream.js";
import { fitsPath } from "./wire.js";

export function loadButton(context, row) {
  const again = row.state === "READY";
  return button(context, row, {
    path: "load", verb: again ? "Reload" : "Load", done: "loaded",
    question: again
      ? "Its files are read again. The version that serves goes on until the new one is ready."
      : "Its newest versions are loaded, as its version policy says.",
  });
}

export function unloadButton(context, row) {
  if (row.state !== "READY" && row.state !== "LOADING") return null;
  return button(context, row, {
    path: "unload", verb: "Unload", done: "unloaded", dangerous: true,
    question: "Requests that it has accepted complete; new ones are refused until it is loaded again.",
  });
}

function button({ ui, refresh }, row, { path, verb, done, question, dangerous = false }) {
  const doing = ui.doing === row.name;
  return h("button", {
    type: "button", key: path, class: dangerous ? "dangerous" : null, disabled: doing,
    onclick: async () => {
      if (!fitsPath(row.name)) {
        notify("A browser cannot have this model's name in a URL: load and unload it over gRPC.", true);
        return;
      }
      if (!(await confirmed(`${verb} ${row.name}?`, question, verb, dangerous))) return;
      ui.doing = row.name;
      refresh();
      announce(`${verb} of ${row.name} has begun.`);
      try {
        const response = await request(`/v2/repository/models/${row.name}/${path}`, {
          method: "POST", headers: { "content-type": "application/json" }, body: "{}",
        });
        if (!response.ok) throw new Error(await messageOf(response));
        notify(`${row.name} is ${done}.`);
      } catch (error) {
        notify(`${verb} of ${row.name}: ${error.message}`, true);
      } finally {
        ui.doing = null;
        refresh();
      }
    },
  }, verb);
}
