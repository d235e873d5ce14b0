"""Compile the CPU kernels into the package. Without a C compiler, the wheel is pure Python."""

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/borat/_native")
SOURCES = [FOLDER / name for name in ("kernels.c", "kernels_of_real.h", "dual.c")]
LIBRARY = FOLDER / "_kernels.so"
# No contraction to fused multiply-adds: results must not depend on the machine's vector instructions. No errno from
# sqrt, which would prevent its vectorisation.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"]


class KernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform == "win32":
            return
        compiler = shlex.split(os.environ.get("CC", "cc"))
        root = Path(self.root)
        library = root / LIBRARY
        temporary = library.with_suffix(f".{os.getpid()}.tmp")
        checksum = zlib.crc32(b"".join((root / source).read_bytes() for source in SOURCES))
        units = [str(root / source) for source in SOURCES if source.suffix == ".c"]
        try:
            command = [*compiler, *FLAGS, f"-DSOURCES={checksum}u", "-o", str(temporary), *units]
            subprocess.run(command, check=True, capture_output=True, text=True)
            temporary.replace(library)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            self.app.display_warning(f"cannot compile the CPU kernels, so PyTorch operations replace them: {reason}")
            for stale in (temporary, library):
                stale.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"


def _platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
