"""Float32 kernels for few rows on a CPU: compiled once for this machine, cached, called through ctypes.

Why our own: at 8 to 32 rows the libraries at hand need two to five times the time of one row, because they repack or
re-read the weights for each block of rows, while one pass over the weights serves all rows. Speculation lives on
that difference. And the libraries' results depend on the number of rows in the last bits; these do not, so that
verifying a tree equals decoding one token at a time bit for bit. Where there is no compiler, `load_kernels` returns
None and the caller stays with torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from schemafill.inference.model.machine import cpu_description, home_folder

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("cpu_kernels.cpp")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-std=c++17", "-fno-math-errno", "-ffp-contract=fast")


class Kernels:
    """The compiled functions. Tensors are contiguous float32 on the CPU unless a line says otherwise."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, long, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        library.panel_width.restype = long
        self.panel_width: int = library.panel_width()
        self._pack, self._linear, self._attention, self._top_two = (
            library.pack_weight, library.packed_linear, library.tree_attention, library.top_two,
        )
        for function in (self._pack, self._linear, self._attention, self._top_two):
            function.restype = None
        self._top_two.argtypes = [pointer, long, long, pointer, pointer]
        self._pack.argtypes = [pointer, pointer, long, long]
        self._linear.argtypes = [pointer, pointer, pointer, pointer, long, long, long]
        self._attention.argtypes = [
            pointer, long, long, pointer, pointer, long, pointer, long, pointer, long, pointer, pointer, real,
            long, long, long, long,
        ]

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [N, K] -> panels [ceil(N / width) + 1, K, width]; the spare last panel is only read ahead of."""
        n, k = weight.shape
        panels = -(-n // self.panel_width)
        packed = torch.zeros(panels + 1, k, self.panel_width)
        self._pack(weight.contiguous().data_ptr(), packed.data_ptr(), n, k)
        return packed

    def linear(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int) -> torch.Tensor:
        """x [..., K] times the packed weight [n, K] transposed, plus bias [n]; returns [..., n]."""
        y = torch.empty(*x.shape[:-1], n)
        self.linear_into(x, packed, bias, y)
        return y

    def linear_into(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> None:
        """The same into `y`, whose first rows are written; its last dimension is n."""
        x, k, n = x.contiguous(), packed.shape[1], y.shape[-1]
        bias_at = None if bias is None else bias.data_ptr()
        self._linear(x.data_ptr(), packed.data_ptr(), bias_at, y.data_ptr(), x.numel() // k, n, k)

    def attention(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: torch.Tensor, context_start: int,
        more: torch.Tensor, more_count: torch.Tensor, scale: float,
    ) -> torch.Tensor:
        """Each query row attends to `context[i]` shared arena rows and then to its own list of rows.

        query [H, M, D], any row and head stride; keys, values [H_kv, W, D], D contiguous, rows D apart;
        context [M], more [M, A], more_count [M] int32. Returns [M, H, D].
        """
        heads, m, d = query.shape
        kv_heads, _, _ = keys.shape
        assert query.stride(2) == 1 and keys.stride(1) == d and values.stride() == keys.stride()
        out = torch.empty(m, heads, d)
        self._attention(
            query.data_ptr(), query.stride(1), query.stride(0), keys.data_ptr(), values.data_ptr(), keys.stride(0),
            context.data_ptr(), context_start, more.data_ptr(), more.stride(0), more_count.data_ptr(), out.data_ptr(),
            scale, m, heads, kv_heads, d,
        )
        return out

    def top_two(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """logits [M, V] -> argmax [M] int64 (lowest id on ties) and the distance to the second largest [M]."""
        m, v = logits.shape
        assert logits.is_contiguous()
        choice, margin = torch.empty(m, dtype=torch.int64), torch.empty(m)
        self._top_two(logits.data_ptr(), m, v, choice.data_ptr(), margin.data_ptr())
        return choice, margin


class PackedLinear(torch.nn.Module):
    """Stands in for an `nn.Linear` whose weight was packed; the original weight is not kept."""

    def __init__(self, kernels: Kernels, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.kernels = kernels
        self.out_features, self.in_features = linear.weight.shape
        self.register_buffer("packed", kernels.pack(linear.weight.detach()), persistent=False)
        bias = None if linear.bias is None else linear.bias.detach().contiguous()
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.linear(x, self.packed, self.bias, self.out_features)

    def into(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """`forward` into the first rows of a buffer that the caller owns."""
        self.kernels.linear_into(x, self.packed, self.bias, y)


def load_kernels() -> Kernels | None:
    """The kernels, compiled now or found in the cache; None (with a log line) where they cannot be had."""
    if os.environ.get("SCHEMAFILL_CPU_KERNELS", "1") == "0":
        return None
    compiler = _find_compiler()
    if compiler is None:
        logger.warning("no C++ compiler found: decoding on this CPU uses torch's own kernels and is slower")
        return None
    try:
        library = _library_path(compiler)
        if not _is_whole(library):
            _compile(compiler, library)
        return Kernels(ctypes.CDLL(str(library)))
    except (OSError, AttributeError, subprocess.CalledProcessError) as error:
        detail = (getattr(error, "stderr", None) or "").strip() or str(error)
        logger.warning("CPU kernels not usable, torch's own are used: %s", detail.splitlines()[-1][:200])
        return None


def _find_compiler() -> list[str] | None:
    """`$CXX`, which may carry options, else g++ or clang++."""
    known = [shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"]]
    return next((words for words in known if words and shutil.which(words[0])), None)


def _library_path(compiler: list[str]) -> Path:
    """Named by everything that decides what comes out: source, flags, compiler, processor."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    built_with = (" ".join([*compiler, *FLAGS]), version, platform.machine(), cpu_description(), torch.__version__)
    digest = hashlib.sha256("\0".join((SOURCE.read_text(), *built_with)).encode()).hexdigest()[:16]
    return home_folder() / "kernels" / f"cpu_kernels-{digest}.so"


def _is_whole(library: Path) -> bool:
    """Whether the library is there as it was compiled: loading a cut one would end the process."""
    seal = library.with_suffix(".sha256")
    return library.is_file() and seal.is_file() and seal.read_text() == _digest(library)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile(compiler: list[str], library: Path) -> None:
    """Compile into a temporary file beside the library and rename it: two processes may do this at once.

    The library's digest is written beside it, last.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [*compiler, *FLAGS, "-shared", str(SOURCE), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        seal = Path(folder) / "seal"
        seal.write_text(_digest(built))
        built.replace(library)
        seal.replace(library.with_suffix(".sha256"))
