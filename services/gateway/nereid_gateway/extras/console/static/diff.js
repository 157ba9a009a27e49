// Differences of a model's declared and effective configuration, down to single values. Pure.

// JSON of the values that unset fields have.
const UNSET = new Set(["\"\"", "[]", "{}", "0", "false", "null", "\"TYPE_INVALID\"", "\"FORMAT_NONE\""]);

// Returns the document's differences as lines { field, declared, effective, kind }. The values are
// texts, and null for an unset one. kind: "added" (filled in by the server), "changed", "removed"
// (declared without effect).
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

// Returns "list" or "object", or false for a value that is shown as a whole.
function hasMembers(value) {
  if (Array.isArray(value)) return value.some((each) => hasMembers(each) === "object") || value.length === 0 ? "list" : false;
  return value !== null && typeof value === "object" ? "object" : false;
}

// Returns the members by the suffix of their field's name. Elements of a list have their index, or
// their name if both lists have an element of that name.
function members(value, other) {
  if (!value || typeof value !== "object") return new Map();
  if (!Array.isArray(value)) return new Map(Object.entries(value).map(([name, each]) => [`.${name}`, each]));
  const names = new Set(Array.isArray(other) ? other.map((each) => each?.name) : []);
  return new Map(value.map((each, index) => [`[${each?.name && names.has(each.name) ? each.name : index}]`, each]));
}
