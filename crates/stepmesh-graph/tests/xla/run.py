"""Compiles and runs StableHLO with XLA's CPU backend: a JSON object a line in, one out.

In:  {"text": module, "args": [[numpy type, [extents], hex bytes], ...]}
Out: {"results": [hex bytes, ...]} or {"error": text}
"""

import json
import sys

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

import jax.extend as jex
import ml_dtypes  # noqa: F401  (gives numpy the small floats)
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib import xla_client

backend = jex.backend.get_backend("cpu")
devices = xla_client.DeviceList(tuple(backend.devices()[:1]))
options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
# What XLA does faster and less exactly is not what is compared.
options.executable_build_options.debug_options.xla_cpu_enable_fast_math = False


def run(request):
    with mlir.make_ir_context():
        module = ir.Module.parse(request["text"])
        executable = backend.compile_and_load(module, devices, options)
    args = []
    for dtype, shape, text in request["args"]:
        value = np.frombuffer(bytes.fromhex(text), np.dtype(dtype)).reshape(shape)
        args.append(jax.device_put(value))
    return [np.asarray(result).tobytes().hex() for result in executable.execute(args)]


for line in sys.stdin:
    try:
        answer = {"results": run(json.loads(line))}
    except Exception as error:  # whatever it is, it is the answer to this one
        answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
    print(json.dumps(answer), flush=True)
