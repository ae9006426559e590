"""The one way to call NVML: announced on the board, counted, and a failure is `Failed` with the code as a number."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from gpuwatch.sampler.board import Board
from gpuwatch.sampler.codes import Code, Failed

Handle: TypeAlias = Any
"""NVML's opaque pointer to a GPU or a MIG instance. A stale one may crash the library: none outlives a fault."""

_TEXT_SIZE = 96
"""Bytes; NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE, the longest of the texts we ask for."""


class Calls:
    """The binding with a guard around each call."""

    def __init__(self, pynvml: Any, board: Board) -> None:
        self.pynvml = pynvml
        self._gpu = -1
        self._known: tuple[int, bytes, bytes] = (0, b"", b"")
        self._board = board

    @property
    def count(self) -> int:
        """Calls made so far."""
        return self._board.calls

    @contextmanager
    def about(self, gpu: int, listed: int = 0, uuid: str = "", bus_id: str = "") -> Iterator[None]:
        """Say on the board that the calls within concern one GPU, and what is known of it; see `board.InFlight`."""
        self._gpu, self._known = gpu, (listed, uuid.encode(), bus_id.encode())
        try:
            yield
        finally:
            self._gpu, self._known = -1, (0, b"", b"")

    def ask(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call one of the binding's functions that makes one NVML call; raises Failed."""
        call = getattr(self.pynvml, function, None)
        if call is None:
            raise Failed(function, Code.FUNCTION_NOT_FOUND)
        self._board.enter(self._gpu, function, *self._known)
        try:
            return call(*arguments, **options)
        except self.pynvml.NVMLError as failure:
            raise Failed(function, failure.value) from None
        finally:
            self._board.leave()

    def has(self, symbol: str) -> bool:
        """Say whether the library has a function."""
        try:
            self.pynvml._nvmlGetFunctionPointer(symbol)
        except self.pynvml.NVMLError:
            return False
        return True

    def raw(self, symbol: str, *arguments: Any) -> int:
        """Call the library's own function and give its code; raises Failed only where there is no such function."""
        try:
            call = self.pynvml._nvmlGetFunctionPointer(symbol)
        except self.pynvml.NVMLError as failure:
            raise Failed(symbol, failure.value) from None
        self._board.enter(self._gpu, symbol, *self._known)
        try:
            return int(call(*arguments))
        finally:
            self._board.leave()

    def text(self, symbol: str, *arguments: Any) -> bytes:
        """Ask for a text by (…, buffer, size); raises Failed.

        The binding decodes strictly, and a driver may put any byte in a name: what comes back are the bytes.
        """
        buffer = ctypes.create_string_buffer(_TEXT_SIZE)
        code = self.raw(symbol, *arguments, buffer, ctypes.c_uint(_TEXT_SIZE))
        if code != Code.SUCCESS:
            raise Failed(symbol, code)
        return buffer.value
