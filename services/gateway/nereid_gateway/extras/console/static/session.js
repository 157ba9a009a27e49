// The viewer's key, and requests that carry it. The key is kept as long as the tab is open.

const KEY = "nereid-key";

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

// Returns the header that carries the key, or null without a key. A key or token is sent as a Bearer;
// the header of --http-restricted-api is entered as NAME: VALUE.
export function header() {
  const text = key();
  if (!text) return null;
  const [, name, value] = /^([\w-]+):\s*(.+)$/.exec(text) ?? [];
  return name ? { name, prefix: "", value } : { name: "Authorization", prefix: "Bearer ", value: text };
}

// Fetches from this origin alone, with the key.
export function request(path, options = {}) {
  const headers = { ...options.headers };
  const own = header();
  if (own) headers[own.name] = own.prefix + own.value;
  return fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers });
}
