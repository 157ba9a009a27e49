// Schedulers, and the models that each of them owns.

import { h } from "./dom.js";
import { seesAll } from "./facts.js";
import { count, plural } from "./format.js";
import { badge, definitions, empty, modelLink, schedulerTitle, section } from "./parts.js";

export const title = () => "Schedulers";
export const query = () => ({ limit: 1 });

export function render({ facts }) {
  const list = Object.values(facts.schedulers);
  return [
    h("h1", { tabindex: -1 }, "Schedulers"),
    h("p", { class: "quiet" }, list.length > 1
      ? "Each model's queue is at one of them. When one is lost, the others take its models over."
      : "It has all models' queues."),
    list.length === 0 ? empty("None is known.") : h("div", { class: "columns" }, list.map((each) => scheduler(each, seesAll(facts)))),
  ];
}

function scheduler(each, all) {
  const more = each.models - each.owned.length;
  const shown = schedulerTitle(each);
  return section(shown,
    h("div", { class: "inline" }, each.reachable ? badge("good", "reachable") : badge("bad", "unreachable"),
      each.host_name && each.host_name !== shown ? h("span", { class: "quiet" }, `on ${each.host_name}`) : null),
    definitions([
      ["Owns", plural(each.models, "model")],
      ["Gateways", count(each.gateways)],
      ["Epoch", count(each.epoch)],
    ]),
    each.owned.length > 0
      ? h("ul", { class: "names" }, each.owned.map((name) => h("li", { key: name }, modelLink(name))))
      : empty(all ? "It owns no model." : "It owns no model that your key may see."),
    more > 0 ? h("p", { class: "quiet" }, `and ${count(more)} more`) : null);
}
