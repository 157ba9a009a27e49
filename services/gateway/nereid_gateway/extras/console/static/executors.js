// Executors, their devices, and the models that use their memory.

import { breakdown } from "./chart.js";
import { drainButton } from "./control.js";
import { h } from "./dom.js";
import { seesAll } from "./facts.js";
import { bytes, count, percent, plural } from "./format.js";
import { badge, definitions, empty, section, table, versionLink } from "./parts.js";

// Number of models that a device's bar shows; further models share one part.
const MAX_PARTS = 7;
const MAX_TENANTS = 200;
// Drawn at first.
const FIRST = 20;

export const title = () => "Executors";
export const query = () => ({ limit: 1 });

export function render(context) {
  const { facts } = context;
  const list = Object.values(facts.executors);
  return [
    h("h1", { tabindex: -1 }, "Executors"),
    list.length === 0
      ? empty("No executor has joined the mesh. Start one with the scheduler's address (--scheduler-address) and look at its log.")
      : [
        h("p", { class: "quiet" }, `${plural(list.length, "executor")} on ${plural(new Set(list.map((each) => each.host)).size, "host")}.`),
        list.map((each) => executor(each, context, facts.permissions.may_drain ? drainButton(context, each) : null)),
      ],
  ];
}

function executor(each, context, drain) {
  return section(each.title,
    h("div", { class: "inline" },
      badge(each.busy > 0 ? "busy" : "quiet", `${count(each.busy)} of ${plural(each.instances, "instance")} busy`),
      each.host_name && each.host_name !== each.title ? h("span", { class: "quiet" }, `on ${each.host_name}`) : null,
      each.name === each.title ? null : h("span", { class: "quiet name" }, each.name),
      h("span", { class: "quiet" }, each.backends.join(", ")),
      drain),
    each.devices.length === 0 ? empty("It has not reported its devices.")
      : h("div", { class: "devices" }, each.devices.map((one) => device(one, each, context))));
}

function device(one, { title: name }, { facts, ui, refresh }) {
  const total = one.memory_total_bytes ?? 0;
  const used = one.memory_used_bytes;
  const tenants = (one.tenants ?? []).toSorted((first, second) => second.memory_bytes - first.memory_bytes);
  const list = parts(tenants, used ?? 0);
  const opened = `${name} ${one.name}`;
  const open = () => {
    ui[opened] = true;
    refresh();
  };
  const more = tenants.length < MAX_TENANTS ? `Show all ${count(tenants.length)}` : `Show the ${count(MAX_TENANTS)} with the most memory`;
  return h("div", { class: "device", key: one.name },
    h("h3", null, one.name),
    definitions([
      total > 0 ? ["Memory", used === undefined ? bytes(total) : `${bytes(used)} of ${bytes(total)} (${percent(used / total)})`] : null,
      one.utilization === undefined ? null : ["Utilization", percent(one.utilization)],
      one.power_watts === undefined ? null : ["Power", `${count(one.power_watts)} W`],
      one.uuid ? ["UUID", h("span", { class: "name" }, one.uuid)] : null,
    ]),
    total > 0 && list.length > 0 ? memory(list, total, `${one.name} of ${name}`) : null,
    tenants.length === 0 ? empty(seesAll(facts) ? "No model is on it." : "No model that your key may see is on it.") : table(`Models on ${one.name} of ${name}`, [
      { title: "Model", cell: (tenant) => versionLink(tenant.model, tenant.version) },
      { title: "Instances", class: "number", cell: (tenant) => count(tenant.instances) },
      { title: "Memory", class: "number", cell: (tenant) => (tenant.memory_bytes > 0 ? bytes(tenant.memory_bytes) : "not measured") },
    ], ui[opened] ? tenants : tenants.slice(0, FIRST), (tenant) => `${tenant.model}/${tenant.version}`),
    tenants.length > FIRST && !ui[opened] ? h("p", null, h("button", { type: "button", onclick: open }, more)) : null);
}

function parts(tenants, used) {
  const measured = tenants.filter((tenant) => tenant.memory_bytes > 0);
  const shown = measured.slice(0, MAX_PARTS - 1).map((tenant, index) => ({
    name: `${tenant.model} v${tenant.version}`, value: tenant.memory_bytes, tone: index + 1,
  }));
  const rest = used - shown.reduce((sum, part) => sum + part.value, 0);
  if (rest > 0) shown.push({ name: "all else", value: rest, tone: 8 });
  return shown;
}

function memory(list, total, where) {
  const named = list.map((part) => ({ ...part, text: bytes(part.value) }));
  return breakdown(named, total, `Memory of ${where}: `);
}
