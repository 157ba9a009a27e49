// Differences of a model's declared and effective configuration, down to single values. Pure.

// What a field that nobody has set has.
const UNSET = new Set(["\"\"", "[]", "{}", "0", "false", "null", "\"TYPE_INVALID\"", "\"FORMAT_NONE\""]);

// differences: of the document. Lines { field, declared, effective, kind } with texts, null where there
// is nothing. kind: "added" (filled in by the server), "changed", "removed" (declared without effect).
export function lines(differences) {
  const found = [];
  for (const { field, declared, effective } of differences) compare(field, declared, effective, found);
  return found;
}

function compare(field, declared, effective, found) {
  const [before, after] = [text(declared), text(effective)];
  if (before === after) return;
  if (hasMembers(declared ?? effective) && (declared === undefined || effective === undefined || hasMembers(declared) === hasMembers(effective))) {
    const [one, other] = [members(declared, effective), members(effective, declared)];
    for (const name of new Set([...one.keys(), ...other.keys()])) {
      compare(`${field}${name}`, one.get(name), other.get(name), found);
    }
    return;
  }
  const kind = before === null ? "added" : after === null ? "removed" : "changed";
  found.push({ field, declared: before, effective: after, kind });
}

function text(value) {
  if (value === undefined) return null;
  const json = JSON.stringify(value);
  return UNSET.has(json) ? null : json;
}

// "list", "object", or false: it is shown as one value.
function hasMembers(value) {
  if (Array.isArray(value)) return value.some((each) => hasMembers(each) === "object") || value.length === 0 ? "list" : false;
  return value !== null && typeof value === "object" ? "object" : false;
}

// By the end of the field's name. An element is known by its name where both lists have it.
function members(value, other) {
  if (!value || typeof value !== "object") return new Map();
  if (!Array.isArray(value)) return new Map(Object.entries(value).map(([name, each]) => [`.${name}`, each]));
  const names = new Set(Array.isArray(other) ? other.map((each) => each?.name) : []);
  return new Map(value.map((each, index) => [`[${each?.name && names.has(each.name) ? each.name : index}]`, each]));
}
