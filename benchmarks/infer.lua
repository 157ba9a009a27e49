-- wrk's side of the HTTP runs: one fixed request, rendered once, and figures as one line of JSON.
-- No response() function: with one wrk would parse every answer in Lua and become the bottleneck.
wrk.method = "POST"
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = os.getenv("BENCH_HEADER_LENGTH")

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "bytes": %d, ' ..
    '"errors": {"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    summary.bytes, e.connect, e.read, e.write, e.status, e.timeout))
end
