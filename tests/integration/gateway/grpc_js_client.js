// What a user of grpc-js does with a server: one JSON object with what came of each step.
//
// node grpc_js_client.js ADDRESS PROTO [ROOT_CERTIFICATE]; modules come from NODE_PATH.
"use strict";

const fs = require("fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, proto, root] = process.argv.slice(2);
const { inference } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true, longs: Number }));
const credentials = root ? grpc.credentials.createSsl(fs.readFileSync(root)) : grpc.credentials.createInsecure();
const unlimited = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };

function client(options) {
  return new inference.GRPCInferenceService(address, credentials, { ...unlimited, ...options });
}

function request(model, bytes, id) {
  return {
    model_name: model,
    id: id || "",
    inputs: [{ name: "INPUT0", datatype: "UINT8", shape: [bytes.length] }],
    raw_input_contents: [bytes],
  };
}

// The error's code and text, or the size of the answer's tensor and whether it is what was sent.
function infer(on, message, options, cancelAfter) {
  return new Promise((resolve) => {
    const call = on.ModelInfer(message, new grpc.Metadata(), options || {}, (error, answer) => {
      if (error) {
        resolve([error.code, error.details]);
      } else {
        const raw = answer.raw_output_contents[0];
        resolve([raw.length, raw.equals(message.raw_input_contents[0])]);
      }
    });
    if (cancelAfter) {
      setTimeout(() => call.cancel(), cancelAfter);
    }
  });
}

function stream(on, count) {
  return new Promise((resolve) => {
    const ids = [];
    const call = on.ModelStreamInfer();
    call.on("data", (reply) => {
      ids.push(reply.error_message || reply.infer_response.id);
      if (ids.length === count) {
        call.end();
      }
    });
    call.on("error", (error) => resolve([error.code, ids]));
    call.on("status", (status) => resolve([status.code, ids]));
    for (let number = 0; number < count; number += 1) {
      call.write(request("echo", Buffer.alloc(1000, number), `${number}`));
    }
  });
}

async function main() {
  const plain = client({});
  const gzip = client({ "grpc.default_compression_algorithm": 2 });
  const big = Buffer.alloc(8000000);
  for (let at = 0; at < big.length; at += 1) {
    big[at] = at % 251;
  }
  const told = {
    unary: await infer(plain, request("echo", Buffer.from("hello"))),
    big: await infer(plain, request("echo", big)),
    many: (await Promise.all([...Array(300)].map((_, n) => infer(plain, request("echo", Buffer.alloc(n + 1))))))
      .filter(([, same]) => same === true).length,
    unknown: await infer(plain, request("none", Buffer.from("x"))),
    deadline: await infer(plain, request("hold", Buffer.from("x")), { deadline: Date.now() + 200 }),
    cancelled: await infer(plain, request("hold", Buffer.from("x")), {}, 200),
    gzip: await infer(gzip, request("echo", big)),
    stream: await stream(plain, 50),
  };
  console.log(JSON.stringify(told));
  plain.close();
  gzip.close();
}

main();
