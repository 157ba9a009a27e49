// The document that the gateway streams, and the past values that the page draws. Pure.

const CAPACITY = 60;

// Returns target with a merge patch applied (RFC 7396): objects merge, null deletes, anything else
// replaces. target itself is not changed.
export function merge(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const result = target !== null && typeof target === "object" && !Array.isArray(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    // Names of models are members, and a plain assignment to this one would set the prototype.
    if (name === "__proto__") define(result, name, value === null ? undefined : merge({}, value));
    else if (value === null) delete result[name];
    else result[name] = merge(Object.hasOwn(result, name) ? result[name] : undefined, value);
  }
  return result;
}

function define(object, name, value) {
  if (value === undefined) delete object[name];
  else Object.defineProperty(object, name, { value, writable: true, enumerable: true, configurable: true });
}

// The last values of some figures, oldest first.
export class History {
  #series = new Map();
  #seen = new Map();

  // Records a value; a second value for the same time is ignored.
  record(name, time, value) {
    if (this.#seen.get(name) === time) return;
    this.#seen.set(name, time);
    const values = this.#series.get(name) ?? [];
    values.push(typeof value === "number" ? value : null);
    if (values.length > CAPACITY) values.shift();
    this.#series.set(name, values);
  }

  of(name) {
    return this.#series.get(name) ?? [];
  }

  // Forgets all series whose names begin with none of these prefixes.
  keep(...prefixes) {
    for (const name of this.#series.keys()) {
      if (!prefixes.some((prefix) => name.startsWith(prefix))) {
        this.#series.delete(name);
        this.#seen.delete(name);
      }
    }
  }
}

// Returns whether the viewer has a right for the model of a row.
export function may(facts, row, right) {
  const { permissions } = facts;
  if (right === "model-repository" && !permissions.may_load) return false;
  if (right === "inference" && !permissions.may_infer) return false;
  return (row.may ?? permissions.rights).includes(right);
}

// Returns whether the viewer may see all models. Otherwise figures cover only the models that the
// viewer may see, and some figures are absent.
export function seesAll(facts) {
  return facts.permissions.for_all_models.includes("console");
}

export function rowsOf(facts) {
  return facts.models.keys.map((key) => ({ key, ...facts.models.rows[key] }));
}

export function busyInstances(facts) {
  return Object.values(facts.executors).reduce((sum, each) => sum + each.busy, 0);
}

// The phases of a request's mean duration; the remaining time is shown as "Other".
const PHASES = [
  ["queue", "Queue", 1],
  ["compute_input", "Input", 2],
  ["compute_infer", "Inference", 3],
  ["compute_output", "Output", 4],
];

export function latencyParts(latency) {
  const parts = PHASES.filter(([name]) => latency?.[name] !== undefined).map(([name, title, tone]) => ({
    name: title, value: latency[name], tone,
  }));
  const rest = (latency?.request ?? 0) - parts.reduce((sum, part) => sum + part.value, 0);
  if (rest > 0) parts.push({ name: "Other", value: rest, tone: 5 });
  return parts;
}

const TONES = { queue: 1, batch_wait: 6, input: 2, inference: 3, output: 4, network: 5, cache: 7 };

export function slowParts(phases, totalUs) {
  const parts = Object.entries(phases ?? {}).filter(([, value]) => value > 0).map(([name, value]) => ({
    name: name.replaceAll(/[_-]/g, " "), value, tone: TONES[name.replaceAll("-", "_")] ?? 5,
  }));
  const rest = totalUs - parts.reduce((sum, part) => sum + part.value, 0);
  if (parts.length > 0 && rest > 0) parts.push({ name: "other", value: rest, tone: 8 });
  return parts;
}

export const CLOSING_REASONS = {
  full: "had max_batch_size rows, or as many as fit",
  preferred: "had a preferred_batch_size",
  shape: "ended at a request of another shape",
  delay: "had waited for the queue delay",
  immediate: "went to a free instance with all that waited",
  shared: "had their instance's fair share of the open requests",
  cost: "had the number of requests that costs least for each on this CPU",
  single: "one request each, as without dynamic_batching",
};
