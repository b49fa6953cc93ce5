"""What a Linux binary says of where it runs: its machine, the newest glibc whose symbols it needs, and which functions
of other libraries it calls.

Read from the file's own section of needed versions (`.gnu.version_r`), as the dynamic loader does: System V ABI, chapter
4, and the Linux Standard Base, section 10.7.
"""

import dataclasses
import struct

SECTION_SYMBOLS, SECTION_VERSIONS_NEEDED = 11, 0x6FFFFFFE
# A symbol that the file does not define itself.
UNDEFINED = 0


class NoElf(Exception):
    """The file is no 64-bit little-endian ELF file, or contradicts itself."""


@dataclasses.dataclass
class Head:
    machine: int
    # Newest version of glibc that is needed, as "2.28".
    libc: str
    # Names that the loader has to find in libraries.
    imports: frozenset


def read(path):
    try:
        return parse(path.read_bytes(), path)
    except struct.error as error:
        raise NoElf(f"{path} ends before its tables do") from error


def parse(data, name):
    if data[:6] != b"\x7fELF\x02\x01":
        raise NoElf(f"{name} is no 64-bit ELF file")
    (machine,) = struct.unpack_from("<H", data, 18)
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + index * size) for index in range(count)]
    newest, imports = (0, 0), set()
    for _, kind, _, _, at, length, link, entries, _, _ in sections:
        if kind == SECTION_SYMBOLS:
            imports.update(imported(data, at, length, sections[link][4]))
        if kind != SECTION_VERSIONS_NEEDED:
            continue
        strings_at = sections[link][4]
        for version in needed(data, at, entries, strings_at):
            newest = max(newest, version)
    if newest == (0, 0):
        raise NoElf(f"{name} needs no glibc, so nothing says where it runs")
    return Head(machine=machine, libc=".".join(str(number) for number in newest), imports=frozenset(imports))


def imported(data, at, length, strings_at):
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[at : at + length - length % 24]):
        if section == UNDEFINED and name:
            yield text_at(data, strings_at + name)


def needed(data, at, entries, strings_at):
    """Versions of glibc named by the entries, each of a library and its versions."""
    for _ in range(entries):
        _, versions, _, first, following = struct.unpack_from("<HHIII", data, at)
        version_at = at + first
        for _ in range(versions):
            _, _, _, name, next_version = struct.unpack_from("<IHHII", data, version_at)
            text = text_at(data, strings_at + name)
            if text.startswith("GLIBC_"):
                numbers = text[len("GLIBC_"):].split(".")
                if all(number.isdigit() for number in numbers):
                    yield tuple(int(number) for number in numbers[:2])
            version_at += next_version
        at += following


def text_at(data, at):
    return data[at : data.index(b"\0", at)].decode()
