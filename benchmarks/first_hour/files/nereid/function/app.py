import nereid


@nereid.model
def double(x: nereid.Tensor["float32", -1]) -> nereid.Tensor["float32", -1]:
    return x * 2
