// Formatting of figures for people. Pure.

const UNKNOWN = "–";

export function count(value) {
  if (!known(value)) return UNKNOWN;
  return Math.round(value).toLocaleString("en-US");
}

// Formats a number per second, without the unit.
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value === 0 ? "0" : digits(value);
}

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86_400)} d`;
}

export function microseconds(value) {
  return seconds(known(value) ? value / 1e6 : value);
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${rest} B` : `${digits(rest)} ${units[unit]}`;
}

export function percent(share) {
  if (!known(share)) return UNKNOWN;
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.1) return "< 0.1 %";
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

// Formats seconds since 1970 as a time of day.
export function clock(unixSeconds) {
  if (!known(unixSeconds) || unixSeconds === 0) return UNKNOWN;
  return new Date(unixSeconds * 1000).toLocaleTimeString("en-GB", { hour12: false });
}

// Returns the shortest text of a 32-bit float, which JSON writes with the digits of a 64-bit one.
export function float32(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  for (let length = 1; length < 10; length += 1) {
    const text = Number(value.toPrecision(length));
    if (Math.fround(text) === Math.fround(value)) return String(text);
  }
  return String(value);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

function digits(value) {
  if (value >= 100) return count(value);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}
