// Questions that are asked before something is done, and what is announced to screen readers.

import { h, update } from "./dom.js";

// Says it once, politely.
export function announce(text) {
  const region = document.getElementById("announcement");
  // The same text again is an announcement as well.
  region.textContent = region.textContent === text ? `${text}\u00a0` : text;
}

// Shows what was done, or why not, for a while.
let hide = 0;
export function notify(text, bad = false) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.className = bad ? "bad" : "";
  notice.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => {
    notice.hidden = true;
  }, bad ? 15_000 : 5_000);
}

// A promise of whether the viewer wants it.
export function confirmed(title, text, verb, dangerous = false) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-labelledby", "confirm-title");
    update(dialog,
      h("form", { method: "dialog" },
        h("h2", { id: "confirm-title" }, title),
        h("p", null, text),
        h("div", { class: "buttons" },
          h("button", { value: "no", autofocus: true }, "Cancel"),
          h("button", { value: "yes", class: dangerous ? "dangerous" : "main" }, verb))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function copyButton(text, what) {
  return h("button", {
    type: "button", "aria-label": `Copy ${what}`,
    onclick: async () => {
      try {
        await copy(text);
        notify(`Copied ${what}.`);
      } catch {
        notify("The browser does not let this page copy: select the text instead.", true);
      }
    },
  }, "Copy");
}

async function copy(text) {
  // Only there on HTTPS and on localhost.
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("not copied");
}
