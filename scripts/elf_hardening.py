"""Reads from the ELF headers of a linked Linux file which protections it has; used by check_wheel.py.

Reads only 64-bit little-endian files: wheels are built for no others.
"""

import dataclasses
import pathlib
import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")

_PT_DYNAMIC, _PT_GNU_STACK, _PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
_DT_FLAGS, _DT_FLAGS_1 = 30, 0x6FFFFFFB
_DF_BIND_NOW, _DF_1_PIE = 8, 0x08000000


@dataclasses.dataclass
class Hardening:
    """The protections of a file; `missing()` lists those that it lacks."""

    is_position_independent: bool = False
    is_executable: bool = False
    has_relro: bool = False
    binds_now: bool = False
    has_plain_stack: bool = False
    has_stack_protector: bool = False
    is_fortified: bool = False

    def missing(self) -> list[str]:
        names = {
            "position independence": self.is_position_independent,
            "RELRO": self.has_relro,
            "BIND_NOW": self.binds_now,
            "a stack that can't be executed": self.has_plain_stack,
            "the stack protector": self.has_stack_protector,
            "FORTIFY_SOURCE": self.is_fortified,
        }
        return [name for name, is_there in names.items() if not is_there]


def read(path: pathlib.Path) -> Hardening:
    """Raises ValueError if the file is not a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(data)
    kind, at, size, count = header[1], header[5], header[9], header[10]
    found = Hardening(
        is_position_independent=kind == 3,
        has_stack_protector=b"\0__stack_chk_fail\0" in data,
        is_fortified=b"\0__snprintf_chk\0" in data or b"\0__memcpy_chk\0" in data,
    )
    for number in range(count):
        segment, flags, offset, _, _, bytes_, _, _ = _SEGMENT.unpack_from(data, at + number * size)
        if segment == _PT_GNU_STACK:
            found.has_plain_stack = not flags & 1
        elif segment == _PT_GNU_RELRO:
            found.has_relro = True
        elif segment == _PT_DYNAMIC:
            _read_dynamic(data[offset : offset + bytes_], found)
    return found


def _read_dynamic(data: bytes, found: Hardening) -> None:
    for tag, value in _DYNAMIC.iter_unpack(data):
        if tag == _DT_FLAGS:
            found.binds_now = bool(value & _DF_BIND_NOW)
        elif tag == _DT_FLAGS_1:
            found.is_executable = bool(value & _DF_1_PIE)
