// Who looks: the key, and requests that carry it. The key is kept as long as the tab is open.

const KEY = "nereid-key";

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

// fetch of this origin alone, with the key.
export function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.authorization = `Bearer ${key()}`;
  return fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers });
}
