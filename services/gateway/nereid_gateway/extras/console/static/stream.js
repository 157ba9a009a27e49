// Server-sent events by fetch, which can send a key, unlike EventSource. Says what state the
// connection is in and dials again with growing pauses.

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;

// Events from chunks of text, as the HTML standard reads them. Pure but for what it has kept.
export class EventParser {
  #rest = "";
  #event = "message";
  #data = [];

  // [{ event, data }] that this chunk completes.
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

// The pause before attempt number attempt (from 0): doubled each time, and of each page another.
export function pauseMs(attempt, random = Math.random) {
  return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt) * (0.5 + random() / 2);
}

// open(signal): a promise of a Response. handlers: { onEvent({ event, data }), onState(state, error) }
// silenceMs(): after which an open stream is stale.
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

  // Dials now, whatever was before.
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

// The text of an error response.
export async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}
