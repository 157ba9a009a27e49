// Server-sent events by fetch, which can send a key, unlike EventSource. Reports the connection's
// state and reconnects with growing pauses.

const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 20_000;

// Parses chunks of text into events, as the HTML standard does. Keeps an incomplete event.
export class EventParser {
  #rest = "";
  #event = "message";
  #data = [];

  // Returns the events [{ event, data }] that this chunk completes.
  push(chunk) {
    const events = [];
    const lines = (this.#rest + chunk).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) events.push({ event: this.#event, data: this.#data.join("\n") });
        this.#event = "message";
        this.#data = [];
        continue;
      }
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "data") this.#data.push(value);
      else if (field === "event") this.#event = value;
    }
    return events;
  }
}

// Returns the pause before an attempt (numbered from 0). It doubles each time, and is random so that
// pages do not reconnect all at once.
export function pauseMs(attempt, random = Math.random) {
  return Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt) * (0.5 + random() / 2);
}

// A stream that reconnects. open(signal) returns a promise of a Response.
// handlers: { onEvent({ event, data }), onState(state, error) }.
// silenceMs() returns the time without events after which an open stream is stale.
// state: "connecting", "live", "stale" (open, but silent), "reconnecting", "refused".
export class Stream {
  #open;
  #handlers;
  #silenceMs;
  #attempt = 0;
  #timer = 0;
  #watch = 0;
  #abort = null;

  constructor(open, handlers, silenceMs) {
    this.#open = open;
    this.#handlers = handlers;
    this.#silenceMs = silenceMs;
  }

  // Connects now; ends an earlier connection.
  start() {
    this.stop();
    this.#abort = new AbortController();
    this.#run(this.#abort.signal);
  }

  stop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #run(signal) {
    this.#handlers.onState(this.#attempt === 0 ? "connecting" : "reconnecting", null);
    let failure = null;
    try {
      const response = await this.#open(signal);
      if (signal.aborted) return;
      if (response.status === 401 || response.status === 403) {
        const error = await messageOf(response);
        if (!signal.aborted) this.#handlers.onState("refused", { status: response.status, message: error });
        return;
      }
      if (!response.ok) throw new Error(await messageOf(response));
      await this.#read(response, signal);
    } catch (error) {
      failure = error;
    }
    if (signal.aborted) return;
    clearTimeout(this.#watch);
    this.#handlers.onState("reconnecting", failure);
    this.#timer = setTimeout(() => this.#run(signal), pauseMs(this.#attempt));
    this.#attempt += 1;
  }

  async #read(response, signal) {
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      this.#expect();
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      for (const event of parser.push(value)) {
        this.#attempt = 0;
        this.#handlers.onState("live", null);
        this.#handlers.onEvent(event);
      }
    }
  }

  #expect() {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => this.#handlers.onState("stale", null), this.#silenceMs());
  }
}

// Returns the error message of a response.
export async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}
