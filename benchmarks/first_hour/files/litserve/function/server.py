import litserve as ls


class Double(ls.LitAPI):
    def setup(self, device):
        pass

    def predict(self, request):
        return {"output": [2 * value for value in request["x"]]}


if __name__ == "__main__":
    ls.LitServer(Double()).run(port=8000)
