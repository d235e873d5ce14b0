"""Compile the Triton kernels for GPUs that need not be there, and tell of each what it takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from borat import kernels_in_triton, kernels_on_device

AMPERE, HOPPER, INSTINCT = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
KERNELS = ("bundle_products", "bundle_move", "rolling_products", "rolling_move")
TYPES = {"numbers": "*fp64", "sums": "*fp64", "is_open": "*i1", "rms": "*fp32", "n": "i32"}
"""All others are pointers to parameters."""


def source(name: str, dtype: str, pieces: int) -> ASTSource:
    """As a step uses it: the smaller bundle without centre and velocity."""
    is_large = pieces > 2
    rows = 8 if is_large else 2
    block = kernels_on_device._BLOCK // (rows if "products" in name else 1)
    shape: dict[str, Any] = {"HAS_CENTRE": is_large, "HAS_VELOCITY": is_large, "PIECES": pieces, "BLOCK": block}
    shape |= {"ROWS": rows, "COLUMNS": 2 * rows if is_large else 8, "REAL": tl.float32}
    shape |= {} if is_large or "rolling" in name else {"centre": None, "velocity": None}
    kernel = getattr(kernels_in_triton, name)
    constants = {key: shape[key] for key in kernel.arg_names if key in shape}
    signature = {key: "constexpr" if key in constants else TYPES.get(key, f"*{dtype}") for key in kernel.arg_names}
    return ASTSource(fn=kernel, signature=signature, constexprs=constants)


def dual(pieces: int) -> ASTSource:
    shape = {"N": pieces, "ROWS": 1 << (pieces - 1).bit_length(), "SUPPORTS": 2**pieces}
    kernel = kernels_in_triton.dual
    signature = {key: "constexpr" if key in shape else "*fp64" for key in kernel.arg_names}
    return ASTSource(fn=kernel, signature=signature, constexprs=shape)


def usage(cubin: bytes) -> str:
    """Registers, and the memory of what has to leave them."""
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return ", ".join(re.findall(r"(?:REG|STACK|LOCAL):\d+", told))


def main() -> None:
    warnings.simplefilter("ignore")
    for name, dtype, pieces in product(KERNELS, ("fp32", "bf16"), (2, 7)):
        for target in (AMPERE, HOPPER, INSTINCT) if dtype == "fp32" else (AMPERE,):
            compiled = triton.compile(source(name, dtype, pieces), target=target)
            assert not re.search(r"muli %n\b.* : i32", compiled.asm["ttir"]), "offsets of rows need 64 bits"
            told = usage(compiled.asm["cubin"]) if target.backend == "cuda" else f"{len(compiled.asm['hsaco'])} bytes"
            print(f"{target.backend} {target.arch}, {name}, {dtype}, {pieces} pieces: {told}")
    for pieces in range(1, kernels_on_device.LARGEST_DUAL + 1):
        options = {"num_warps": kernels_on_device.dual_warps(pieces)}
        compiled = triton.compile(dual(pieces), target=AMPERE, options=options)
        print(f"cuda {AMPERE.arch}, dual, {pieces} pieces: {usage(compiled.asm['cubin'])}")


if __name__ == "__main__":
    main()
