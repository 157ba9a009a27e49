// Runs the trace processor of a Perfetto UI (its engine_bundle.js with the .wasm beside it) on the
// bytes of standard input, a TraceProcessorRpcStream, and writes its replies to standard output.
// usage: node perfetto_engine.js FOLDER
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const host = process;
const folder = host.argv[2];
const replies = [];
host.on("uncaughtException", (error) => {
  // Not the source line, which is the whole bundle.
  const lines = String(error.stack).split("\n").map((line) => line.slice(0, 200));
  fs.writeSync(2, `${String(error.message).slice(0, 1000)}\n${lines.slice(-12).join("\n")}\n`);
  host.exit(1);
});
console.log = console.warn = console.error = (text) => fs.writeSync(2, `${text}\n`);
// What a browser's worker has; and not what Node has.
globalThis.self = globalThis;
globalThis.location = { href: "http://localhost/" };
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.name = name;
  }
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.name)));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
};
delete globalThis.process;
const asked = fs.readFileSync(0);
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
const port = { postMessage: (data) => replies.push(Buffer.from(data)) };
self.onmessage({ data: port });
const deadline = Date.now() + 60000;
const polling = setInterval(() => {
  try {
    port.onmessage({ data: new Uint8Array(asked) });
  } catch (error) {
    if (Date.now() < deadline && replies.length === 0) return;
    throw error;
  }
  clearInterval(polling);
  fs.writeSync(1, Buffer.concat(replies));
}, 200);
