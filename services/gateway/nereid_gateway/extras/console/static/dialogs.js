// Confirmation dialogs, notices, and announcements for screen readers.

import { h, update } from "./dom.js";

// Has screen readers say a text once, without interrupting them.
export function announce(text) {
  const region = document.getElementById("announcement");
  // Screen readers announce only changes, so that a repeated text is made to differ by a space.
  region.textContent = region.textContent === text ? `${text}\u00a0` : text;
}

// Shows a notice for a while: the result of an action, or the reason why it failed (bad).
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

// Asks for confirmation; the promise resolves to true if the viewer has confirmed.
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
  // Browsers have navigator.clipboard only on HTTPS and on localhost.
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
