#!/usr/bin/env python3
"""Packs one built binary: a tarball, a Debian package and a Python wheel, the same bytes whenever the same is packed.

    pack.py BINARY --out FOLDER [--client BINARY] [--epoch SECONDS] [--sbom FILE] [--level 1..9]

Beside the binary go its completions and man pages, which the binary itself writes, the licence, the changelog and, where
one is given, the list of what the binary is made of (`sbom.py`). The C library that the binary needs is read from the
binary: it decides the wheel's platform tag and the Debian package's dependency. SHA256SUMS names every file.

The small client, the same program built with --no-default-features, becomes a tarball of its own; one that would open
libraries at run time is refused.

Times in archives are SECONDS after 1970 (SOURCE_DATE_EPOCH, else the last commit's); owners are root, names are sorted.
Needs Python alone.
"""

import argparse
import base64
import gzip
import hashlib
import io
import lzma
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import elf

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOMEPAGE_SUMMARY = "build, measure, compare and fetch inference engines for every device of a fleet"
DESCRIPTION = """Turns a trained model (ONNX) into the fastest engine for every device of a fleet: a coordinator queues
build jobs, agents compile and measure on their own devices, and the engine for a device is a lookup."""
# Fields of Debian and of wheels that name a machine, by the ELF number of it.
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}
SHELLS = {
    "bash": "share/bash-completion/completions/planforge",
    "zsh": "share/zsh/vendor-completions/_planforge",
    "fish": "share/fish/vendor_completions.d/planforge.fish",
}


class Failure(Exception):
    """What went wrong, for people."""


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        words = " ".join(str(word) for word in words)
        raise Failure(f"{words} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def version_of(binary):
    """The version, as the binary says it: what is packed and what it says of itself cannot differ."""
    words = run(binary, "--version").decode().split()
    if len(words) < 2 or words[0] != "planforge":
        raise Failure(f"{binary} does not say which version of planforge it is")
    return words[1]


def epoch(given):
    if given is not None:
        return given
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def zipped(data, level=9):
    """gzip without a name or time."""
    return gzip.compress(data, compresslevel=level, mtime=0)


def payload(binary, work):
    """What every package holds, as {path below the prefix: (bytes, mode)}."""
    files = {"bin/planforge": (binary.read_bytes(), 0o755)}
    for shell, path in SHELLS.items():
        files[path] = (run(binary, "completions", shell), 0o644)
    for script in sorted((ROOT / "deploy/ci").glob("*.sh")):
        files[f"share/planforge/ci/{script.name}"] = (script.read_bytes(), 0o755)
    for file in sorted((ROOT / "deploy/monitoring").iterdir()):
        files[f"share/planforge/monitoring/{file.name}"] = (file.read_bytes(), 0o644)
    pages = work / "man"
    run(binary, "man-pages", str(pages))
    for page in sorted(pages.iterdir()):
        files[f"share/man/man1/{page.name}.gz"] = (zipped(page.read_bytes()), 0o644)
    return files


def tar_of(files, seconds, prefix):
    """An uncompressed tar of {path: (bytes, mode)}, folders included."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        folders = set()
        for path in sorted(files):
            parents = [parent for parent in pathlib.PurePosixPath(path).parents if str(parent) != "."]
            for parent in reversed(parents):
                if parent not in folders:
                    folders.add(parent)
                    tar.addfile(entry(f"{prefix}{parent}/", 0o755, seconds, tarfile.DIRTYPE))
            data, mode = files[path]
            info = entry(f"{prefix}{path}", mode, seconds, tarfile.REGTYPE)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name, mode, seconds, kind):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type, info.uname, info.gname = mode, seconds, kind, "root", "root"
    return info


def tarball(files, name, seconds, level):
    licence = {"LICENSE": "LICENSE", "CHANGELOG.md": "CHANGELOG.md", "README.md": "README.md"}
    more = {path: ((ROOT / source).read_bytes(), 0o644) for path, source in licence.items()}
    return zipped(tar_of({**files, **more}, seconds, f"{name}/"), level)


def ar_member(name, data, seconds):
    header = f"{name:<16}{seconds:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return header + data + (b"\n" if len(data) % 2 else b"")


# Users and folders are there before a unit starts; systemd learns of units that came or changed. A host without systemd,
# such as a container, has neither program. Nothing is started or stopped: what runs is an administrator's decision.
AFTER_INSTALL = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    ! command -v systemd-sysusers >/dev/null || systemd-sysusers planforge.conf
    ! command -v systemd-tmpfiles >/dev/null || systemd-tmpfiles --create planforge.conf || true
    [ ! -d /run/systemd/system ] || ! command -v systemctl >/dev/null || systemctl daemon-reload
fi
"""
AFTER_REMOVAL = """#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || ! command -v systemctl >/dev/null || systemctl daemon-reload
"""


def units():
    """What systemd reads, as {path: (bytes, mode)}."""
    folder = ROOT / "deploy/systemd"
    files = {f"lib/systemd/system/{unit.name}": (unit.read_bytes(), 0o644) for unit in sorted(folder.glob("*.service"))}
    for kind in ("tmpfiles", "sysusers"):
        files[f"lib/{kind}.d/planforge.conf"] = ((folder / f"planforge.{kind}.conf").read_bytes(), 0o644)
    return files


def deb(files, version, architecture, libc, seconds, level):
    """A Debian package: an ar archive of a version, a control archive and a data archive."""
    docs = "share/doc/planforge"
    copyright_text = (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: planforge\n\nFiles: *\nCopyright: the authors of Planforge\nLicense: Apache-2.0\n"
        " The text is in /usr/share/common-licenses/Apache-2.0.\n"
    )
    files = {
        **files,
        **units(),
        f"{docs}/copyright": (copyright_text.encode(), 0o644),
        f"{docs}/changelog.gz": (zipped((ROOT / "CHANGELOG.md").read_bytes()), 0o644),
    }
    files = {f"usr/{path}": content for path, content in files.items()}
    size_kib = sum((len(data) + 1023) // 1024 for data, _ in files.values())
    control = (
        f"Package: planforge\nVersion: {version}\nArchitecture: {architecture}\n"
        "Maintainer: the authors of Planforge\n"
        f"Installed-Size: {size_kib}\nDepends: libc6 (>= {libc}), ca-certificates\nSection: science\nPriority: optional\n"
        f"Description: {HOMEPAGE_SUMMARY}\n " + DESCRIPTION.replace("\n", "\n ") + "\n"
    )
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, (data, _) in sorted(files.items()))
    controls = {"control": (control.encode(), 0o644), "md5sums": (sums.encode(), 0o644)}
    controls["postinst"] = (AFTER_INSTALL.encode(), 0o755)
    controls["postrm"] = (AFTER_REMOVAL.encode(), 0o755)
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", zipped(tar_of(controls, seconds, "./"))),
        ("data.tar.xz", lzma.compress(tar_of(files, seconds, "./"), preset=min(level - 1, 6))),
    ]
    return b"!<arch>\n" + b"".join(ar_member(name, data, seconds) for name, data in members)


def wheel(files, version, machine, libc, seconds, level):
    """A wheel whose script is the binary itself; man pages and completions go where wheels may put data."""
    tag = f"py3-none-manylinux_{libc.replace('.', '_')}_{machine}"
    info = f"planforge-{version}.dist-info"
    data = f"planforge-{version}.data"
    metadata = (
        f"Metadata-Version: 2.4\nName: planforge\nVersion: {version}\nSummary: {HOMEPAGE_SUMMARY}\n"
        "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.8\n"
        "Classifier: Operating System :: POSIX :: Linux\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / "README.md").read_text()
    )
    content = {
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: planforge pack\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
        f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
    }
    for path, file in files.items():
        content[f"{data}/scripts/planforge" if path == "bin/planforge" else f"{data}/data/{path}"] = file
    lines = []
    for path, (bytes_, _) in sorted(content.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(bytes_).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(bytes_)}\n")
    lines.append(f"{info}/RECORD,,\n")
    content[f"{info}/RECORD"] = ("".join(lines).encode(), 0o644)
    # Zip knows no time before 1980.
    when = time.gmtime(max(seconds, 315532800))[:6]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # The record comes last, as installers expect it.
        for path in sorted(content, key=lambda path: (path.endswith("/RECORD"), path)):
            bytes_, mode = content[path]
            member = zipfile.ZipInfo(path, when)
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, bytes_, compresslevel=level)
    return f"planforge-{version}-{tag}.whl", out.getvalue()


def head_of(binary):
    if not binary.is_file():
        raise Failure(f"{binary} is no file")
    head = elf.read(binary)
    if head.machine not in MACHINES:
        raise Failure(f"{binary} is for machine {head.machine}, of which no package is made")
    return head


def small_client(given, version, machine, seconds, work):
    """The tarball of the small client, by name."""
    client = given.client.resolve()
    head = head_of(client)
    if "dlopen" in head.imports:
        raise Failure(f"{client} opens libraries at run time: it is not the small client")
    if version_of(client) != version:
        raise Failure(f"{client} is version {version_of(client)}, the whole program {version}")
    pages = work / "client"
    pages.mkdir()
    name = f"planforge_client-{version}-linux-{machine}"
    return {f"{name}.tar.gz": tarball(payload(client, pages), name, seconds, given.level)}


def pack(given, work):
    binary = given.binary.resolve()
    head = head_of(binary)
    machine, architecture = MACHINES[head.machine]
    seconds, version = epoch(given.epoch), version_of(binary)
    files = payload(binary, work)
    if given.sbom:
        files["share/doc/planforge/sbom.cdx.json"] = (given.sbom.read_bytes(), 0o644)
    name = f"planforge-{version}-linux-{machine}"
    packed = {
        f"{name}.tar.gz": tarball(files, name, seconds, given.level),
        f"planforge_{version}_{architecture}.deb": deb(files, version, architecture, head.libc, seconds, given.level),
    }
    wheel_name, wheel_bytes = wheel(files, version, machine, head.libc, seconds, given.level)
    packed[wheel_name] = wheel_bytes
    if given.client:
        packed.update(small_client(given, version, machine, seconds, work))
    if given.sbom:
        packed[f"{name}.cdx.json"] = given.sbom.read_bytes()
    given.out.mkdir(parents=True, exist_ok=True)
    sums = ""
    for file, data in sorted(packed.items()):
        (given.out / file).write_bytes(data)
        sums += f"{hashlib.sha256(data).hexdigest()}  {file}\n"
    (given.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--client", type=pathlib.Path, help="the small client")
    parser.add_argument("--epoch", type=int)
    parser.add_argument("--sbom", type=pathlib.Path)
    parser.add_argument("--level", type=int, choices=range(1, 10), default=9, help="how hard to compress")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            pack(given, pathlib.Path(work))
        except (Failure, elf.NoElf) as error:
            sys.exit(f"pack.py: {error}")


if __name__ == "__main__":
    main()
