// Small drawings in SVG: lines over time, shares of a whole. Sizes are attributes, because the
// content security policy allows no inline styles.

import { h } from "./dom.js";
import { known } from "./format.js";

const WIDTH = 160;
const HEIGHT = 36;

// Draws values as a line, oldest first; null leaves a gap. label: text for screen readers.
export function sparkline(values, label, capacity = 60) {
  const most = Math.max(...values.filter(known), 0) || 1;
  const step = WIDTH / (capacity - 1);
  const first = capacity - values.length;
  let path = "";
  let drawn = false;
  values.forEach((value, index) => {
    if (!known(value)) {
      drawn = false;
      return;
    }
    const x = ((first + index) * step).toFixed(1);
    const y = (HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1);
    // A value between two gaps is a short line.
    if (drawn) path += `L${x} ${y}`;
    else path += known(values[index + 1]) ? `M${x} ${y}` : `M${x} ${y}h-3`;
    drawn = true;
  });
  return h(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
    h("path", { d: path || "M0 0" }),
  );
}

// Draws parts [{ name, value, text, tone }] of a whole as one bar with a legend. A total that exceeds
// their sum leaves the rest of the bar empty. prefix: beginning of the text for screen readers.
export function breakdown(parts, total = parts.reduce((sum, part) => sum + part.value, 0), prefix = "") {
  const label = prefix + parts.map((part) => `${part.name} ${part.text}`).join(", ");
  return [stack(parts, total, label), legend(parts)];
}

function stack(parts, total, label) {
  let at = 0;
  const bars = parts.filter((part) => part.value > 0 && total > 0).map((part) => {
    const width = (part.value / total) * 100;
    const bar = h(
      "rect",
      { key: part.name, class: `tone-${part.tone}`, x: at.toFixed(2), y: 0, width: width.toFixed(2), height: 10 },
      h("title", null, `${part.name}: ${part.text}`),
    );
    at += width;
    return bar;
  });
  return h(
    "svg",
    { class: "stack", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    bars,
  );
}

function legend(parts) {
  return h(
    "ul",
    { class: "legend" },
    parts.map((part) =>
      h("li", { key: part.name },
        h("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
          h("rect", { class: `tone-${part.tone}`, width: 10, height: 10, rx: 2 })),
        h("span", null, part.name), " ", h("b", null, part.text)),
    ),
  );
}

// Draws rows [{ name, value, text }] as a bar chart; the bar of the largest value has full width.
export function bars(rows, label) {
  const most = Math.max(...rows.map((row) => row.value), 0) || 1;
  return h(
    "table",
    { class: "bars", "aria-label": label },
    h("tbody", null, rows.map((row) =>
      h("tr", { key: row.name },
        h("th", { scope: "row" }, row.name),
        h("td", { class: "bar" },
          h("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
            h("rect", { class: "tone-3", width: ((row.value / most) * 100).toFixed(2), height: 10 }))),
        h("td", { class: "number" }, row.text)))),
  );
}
