import operator

import litserve as ls
import more_itertools
import toolz


class Running(ls.LitAPI):
    def setup(self, device):
        pass

    def predict(self, request):
        first = more_itertools.first(request["x"])
        return {"output": [v - first for v in toolz.accumulate(operator.add, request["x"])]}


if __name__ == "__main__":
    ls.LitServer(Running()).run(port=8000)
