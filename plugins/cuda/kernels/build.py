"""Makes flags.ptx of flags.cu with NVRTC, which needs no GPU.

    pip download --no-deps -d wheel nvidia-cuda-nvrtc-cu11==11.7.99
    python3 -m zipfile -e wheel/*.whl wheel
    LD_LIBRARY_PATH=wheel/nvidia/cuda_nvrtc/lib python3 build.py

The compiler is of the oldest driver that the plugin takes (11.7): a driver refuses PTX of a newer version
than its own. The architecture is the oldest that has __nanosleep (compute_70); drivers compile PTX for
every later one.
"""

import ctypes
import hashlib
import pathlib

SOURCE = pathlib.Path(__file__).with_name("flags.cu")
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14"]

nvrtc = ctypes.CDLL("libnvrtc.so.11.2")


def check(status):
    if status != 0:
        raise SystemExit(f"NVRTC answered {status}")


def text(size_of, get, program):
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(get(program, buffer))
    return buffer.value.decode()


source = SOURCE.read_bytes()
program = ctypes.c_void_p()
check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"flags.cu", 0, None, None))
status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS))
if status != 0:
    print(text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
    check(status)
ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
digest = hashlib.sha256(source).hexdigest()
SOURCE.with_suffix(".ptx").write_text(f"// made by build.py of flags.cu, sha256 {digest}\n{ptx}")
