// A request to a decoupled model by /generate_stream, and a limited number of its responses.

import { request as send } from "./session.js";
import { EventParser, messageOf } from "./stream.js";
import { generateBody, generatePath } from "./wire.js";

const MAX_RESPONSES = 1000;
const MAX_CHARACTERS = 4_000_000;
// Number of responses that the page shows; further ones are only counted.
const MAX_KEPT = 100;

// Sends the request; the promise resolves at its end. inputs: those of the model's metadata.
// onResult is called after each response and at the end, with a result { status, took, count,
// responses: [{ number, took, text }], stopped, error }.
export async function generate(request, inputs, signal, onResult) {
  const started = performance.now();
  const result = { count: 0, responses: [], stopped: "" };
  const changed = () => {
    result.took = performance.now() - started;
    onResult(result);
  };
  try {
    const reply = await send(generatePath(request), {
      method: "POST", body: generateBody(request, inputs), headers: { "content-type": "application/json" }, signal,
    });
    result.status = reply.status;
    if (reply.headers.get("content-type")?.startsWith("text/event-stream")) await read(reply, result, changed);
    else result.error = await messageOf(reply);
  } catch (error) {
    if (signal.aborted) result.stopped = "Stopped.";
    else result.error = error.message;
  }
  changed();
  return result;
}

async function read(reply, result, changed) {
  const parser = new EventParser();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let characters = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    characters += value.length;
    for (const { data } of parser.push(value)) {
      result.count += 1;
      changed();
      if (result.responses.length < MAX_KEPT) result.responses.push({ number: result.count, took: result.took, text: data });
    }
    if (result.count >= MAX_RESPONSES || characters >= MAX_CHARACTERS) {
      // Cancelling the reader ends the request as well.
      await reader.cancel();
      result.stopped = "Stopped: a page takes no more.";
      return;
    }
  }
}
