"""Custom metrics: a counter by X, a gauge at X, and a histogram of X."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.families, self.metrics = [], {}
        for kind, more in (
            ("COUNTER", {}),
            ("GAUGE", {}),
            ("HISTOGRAM", {"buckets": [1, 2.5, 10]}),
        ):
            family = pb_utils.MetricFamily(
                name=f"custom_{kind.lower()}",
                description=f"A {kind.lower()}",
                kind=getattr(pb_utils.MetricFamily, kind),
            )
            # The real server takes a family's end for its metrics' end.
            self.families.append(family)
            self.metrics[kind] = family.Metric(
                labels={"model": args["model_name"], "a": "b"}, **more
            )

    def execute(self, requests):
        for request in requests:
            number = float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])
            self.metrics["COUNTER"].increment(number)
            self.metrics["GAUGE"].set(number)
            self.metrics["HISTOGRAM"].observe(number)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(each, "X").as_numpy())]
            )
            for each in requests
        ]
