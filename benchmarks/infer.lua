-- wrk's side of the HTTP runs: requests rendered once, and figures as one line of JSON. The file
-- holds one body, or several of BENCH_BODY_BYTES each, which are then sent in turn. Without
-- BENCH_HEADER_LENGTH it is nothing but JSON.
-- No response() function: with one wrk would parse every response in Lua and become the bottleneck.
wrk.method = "POST"
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
local bodies = file:read("*a")
file:close()
wrk.body = bodies
local header_length = os.getenv("BENCH_HEADER_LENGTH")
wrk.headers["Content-Type"] = header_length and "application/octet-stream" or "application/json"
wrk.headers["Inference-Header-Content-Length"] = header_length

local size = tonumber(os.getenv("BENCH_BODY_BYTES") or #bodies)
if size < #bodies then
  local requests, last = {}, 0
  function init()
    for first = 1, #bodies, size do
      requests[#requests + 1] = wrk.format(nil, nil, nil, bodies:sub(first, first + size - 1))
    end
  end

  function request()
    last = last % #requests + 1
    return requests[last]
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "bytes": %d, ' ..
    '"errors": {"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    summary.bytes, e.connect, e.read, e.write, e.status, e.timeout))
end
