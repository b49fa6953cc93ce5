"""Kernels of one's own, from source to launch, by NVRTC and the driver: what scripts beside this one share."""

import ctypes
import ctypes.util
import glob

# Attributes of a launch: all blocks at once or none; begin when those ahead let it.
COOPERATIVE = 2
BEGINS_EARLY = 6
# Attribute of a kernel: most dynamic shared memory.
SHARED_BYTES = 8


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]

    @classmethod
    def of(cls, which):
        return cls(id=which, value=1)


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


def nvrtc():
    found = ctypes.util.find_library("nvrtc")
    places = sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.*[0-9]"), key=len)
    return ctypes.CDLL(found or places[0])


def check(code, what):
    if code:
        raise RuntimeError(f"{what} failed with {code}")


def compiled(library, source, options):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = library.nvrtcCompileProgram(program, len(options), given)
    ask = ("ProgramLogSize", "ProgramLog") if failed else ("CUBINSize", "CUBIN")
    getattr(library, f"nvrtcGet{ask[0]}")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{ask[1]}")(program, text)
    if failed:
        raise RuntimeError(text.value.decode())
    return text.raw


def pointers_to(arguments):
    """Where a launch's arguments lie; they have to live as long as it."""
    return (ctypes.c_void_p * len(arguments))(*[ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in arguments])
