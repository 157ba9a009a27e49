// Builds elements and updates them in place, so that focus, selection and scrolling outlive an
// update. Text becomes text nodes and attributes, never markup. The module knows nothing of the mesh.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "line", "title"]);

// Describes an element. In attributes, "on<event>" is a listener and "key" identifies the element
// among its siblings; true sets an attribute, false removes it, null leaves it out.
export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: flat(children) };
}

function flat(children) {
  const result = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    result.push(typeof child === "object" ? child : String(child));
  }
  return result;
}

// Updates parent's children so that they are as described.
export function update(parent, ...descriptions) {
  const wanted = flat(descriptions);
  const byKey = new Map();
  for (const node of parent.childNodes) {
    if (node.described?.attributes.key !== undefined) byKey.set(node.described.attributes.key, node);
  }
  const keyed = new Set(wanted.map((each) => each.attributes?.key).filter((key) => key !== undefined));
  let place = parent.firstChild;
  for (const description of wanted) {
    const key = description.attributes?.key;
    let node = key === undefined ? place : byKey.get(key);
    // Two descriptions with the same key must get two nodes.
    byKey.delete(key);
    // A node is not reused here if another description will find it by its key.
    while (key === undefined && node && keyed.has(node.described?.attributes.key)) node = node.nextSibling;
    if (node && fits(node, description)) {
      if (node === place) place = place.nextSibling;
      else parent.insertBefore(node, place);
      apply(node, description);
    } else {
      parent.insertBefore(create(description), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    parent.removeChild(place);
    place = next;
  }
}

function fits(node, description) {
  if (typeof description === "string") return node.nodeType === Node.TEXT_NODE;
  return (
    node.described !== undefined &&
    node.described.tag === description.tag &&
    node.described.attributes.key === description.attributes.key
  );
}

function create(description) {
  if (typeof description === "string") return document.createTextNode(description);
  const { tag } = description;
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  node.described = { tag, attributes: {}, children: [] };
  apply(node, description);
  return node;
}

function apply(node, description) {
  if (typeof description === "string") {
    if (node.data !== description) node.data = description;
    return;
  }
  const before = node.described.attributes;
  node.described = description;
  // Children come before attributes, because a select accepts a value only if it has its options.
  update(node, ...description.children);
  const { attributes } = description;
  for (const name of Object.keys(before)) if (!(name in attributes)) set(node, name, null, before[name]);
  for (const [name, value] of Object.entries(attributes)) set(node, name, value, before[name]);
}

function set(node, name, value, before) {
  if (name === "key" || value === before) return;
  if (name.startsWith("on")) {
    // Each node has one listener per event, which calls the newest function.
    node.listeners ??= {};
    const type = name.slice(2);
    if (!(type in node.listeners)) node.addEventListener(type, (event) => node.listeners[type]?.(event));
    node.listeners[type] = value;
  } else if (name === "value" || name === "checked" || name === "disabled" || name === "open") {
    if (node[name] !== value) node[name] = value ?? "";
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : value);
  }
}
