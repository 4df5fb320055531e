"""The scale of dynamically quantized data stays beside the scale of the weight."""

import irc
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

TAILS = {
    "HardSigmoid": "y = HardSigmoid(d)",
    "MatMul": "y = MatMul(d, w2)",
    "Relu, MatMul": "r = Relu(d) y = MatMul(r, w2)",
}


def products(source: str, tail: str) -> tuple[int, int]:
    """Return the number of Mul before and after a compile."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 8] x, float given) => (float[4, 8] y) {{
            q, s, z = DynamicQuantizeLinear(x)
            m = MatMulInteger(q, w, z)
            c = Cast<to = 1>(m)
            f = Mul({source}, ws)
            d = Mul(c, f)
            {tail}
        }}"""
    )
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-9, 9, (8, 8)).astype(np.int8),
        "ws": np.float32(0.01),
        "w2": rng.standard_normal((8, 8)).astype(np.float32),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()
    )
    counts = [sum(node.op_type == "Mul" for node in m.graph.node) for m in (model, compiled(model))]
    return counts[0], counts[1]


def compiled(model: onnx.ModelProto) -> onnx.ModelProto:
    return irc.compile(model).model


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_the_scale_of_the_data_keeps_its_constant(tail: str) -> None:
    assert products("s", tail) == (2, 2)


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_another_scalar_loses_its_constant(tail: str) -> None:
    assert products("given", tail) == (2, 1)
