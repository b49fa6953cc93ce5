#!/usr/bin/env python3
"""Assembles a container image from the binary and Debian packages, without a daemon: an OCI image layout.

    build.py KIND BINARY --out FOLDER [--base LAYOUT] [--sbom FILE] [--packages FOLDER] [--epoch SECONDS] [--compress N]

KIND is `coordinator` or `agent`. FOLDER becomes an OCI image layout (`oci-layout`, `index.json`, `blobs/`), which skopeo,
podman, buildah and containerd read, and beside it `FOLDER.cdx.json`, what is inside: every Debian package with its
version, and with --sbom what the binary is made of.

Without --base the image holds glibc, certificates and the binary, nothing else: no shell, no package manager. An agent
for GPUs is put upon the layers of a CUDA base, an OCI layout that somebody fetched (`skopeo copy docker://IMAGE
oci:cuda-base`): its C library is used, and only the binary comes on top.

Debian packages are downloaded by `apt-get download`, from whatever this machine's apt knows, into --packages, which may
be kept: the same packages and binary give the same bytes, whoever builds when.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of Debian, in the order in which they are unpacked.
PACKAGES = ["libc6", "libgcc-s1", "libstdc++6", "tzdata", "ca-certificates"]
MERGED = ("bin", "lib", "lib64")
# No user of the host has this id by accident.
USER = 65532
KINDS = {
    "coordinator": {
        "Cmd": ["coordinator", "--listen", "0.0.0.0:7400"],
        "Volumes": {"/data": {}},
        "ExposedPorts": {"7400/tcp": {}},
        # By its socket, where the owner of the data folder needs no token; without a server it would start one of its own.
        "Healthcheck": {
            "Test": ["CMD", "/usr/bin/planforge", "--server", "unix:/data/coordinator.sock", "agents", "list"],
            "Interval": 30_000_000_000,
            "Timeout": 5_000_000_000,
            "StartPeriod": 30_000_000_000,
            "Retries": 3,
        },
    },
    "agent": {"Cmd": ["agent", "--state", "/data", "--drain-s", "600"], "Volumes": {"/data": {}}},
}
ENVIRONMENT = {"HOME": "/data", "PLANFORGE_DATA": "/data", "PLANFORGE_LOCK_DIR": "/run/lock/planforge"}
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Failure(Exception):
    """What an image could not be made for, in one sentence."""


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def downloaded(folder):
    """The .deb of each package, downloaded where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in PACKAGES:
        archives = sorted(folder.glob(f"{name}_*.deb"))
        if not archives:
            try:
                run("apt-get", "download", "-qq", name, cwd=folder)
            except Failure:
                # The archive may have moved on since this machine last asked what it holds.
                run("apt-get", "update", "-qq")
                run("apt-get", "download", "-qq", name, cwd=folder)
            archives = sorted(folder.glob(f"{name}_*.deb"))
        if len(archives) != 1:
            raise Failure(f"{folder} holds {len(archives)} archives of {name}; one was expected")
        found[name] = archives[0]
    return found


def unpacked(archive):
    """{path: (TarInfo, bytes)} of a Debian package; folders come by themselves."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(run("dpkg-deb", "--fsys-tarfile", str(archive)))) as tar:
        for info in tar:
            path = info.name.removeprefix("./").rstrip("/")
            if info.isdir() or not path:
                continue
            if info.islnk():
                raise Failure(f"{archive.name} holds a hard link, {path}, which is not read here")
            files[path] = (info.linkname if info.issym() else tar.extractfile(info).read(), info.mode, info.issym())
    return files


def is_needed(path):
    """Documentation, and what only a package manager or a shell runs, stays out; licences stay in."""
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")
    return not path.startswith(("usr/share/man/", "usr/share/lintian/", "usr/sbin/", "sbin/", "etc/", "usr/share/gdb/", "usr/share/zoneinfo/right/"))


def rootfs(binary, archives):
    """All files of the image but those of a base, as {path: (bytes or link, mode, is a link)}."""
    files = {}
    for name, archive in archives.items():
        fields = run("dpkg-deb", "--field", str(archive))
        # Where scanners look for what an image without dpkg holds.
        files[f"var/lib/dpkg/status.d/{name}"] = (fields, 0o644, False)
        for path, file in unpacked(archive).items():
            if is_needed(path):
                # Packages may still name the old places of what has long been below /usr.
                files[f"usr/{path}" if path.split("/")[0] in MERGED else path] = file
    bundle = b"".join(
        content for path, (content, _, _) in sorted(files.items()) if path.startswith("usr/share/ca-certificates/") and path.endswith(".crt")
    )
    if bundle:
        files["etc/ssl/certs/ca-certificates.crt"] = (bundle, 0o644, False)
    if archives:
        files.update({name: (f"usr/{name}", 0o777, True) for name in MERGED})
        files["etc/passwd"] = (f"root:x:0:0:root:/:/sbin/nologin\nplanforge:x:{USER}:{USER}:Planforge:/data:/sbin/nologin\n".encode(), 0o644, False)
        files["etc/group"] = (f"root:x:0:\nplanforge:x:{USER}:\n".encode(), 0o644, False)
        files["etc/nsswitch.conf"] = (b"hosts: files dns\n", 0o644, False)
    files["usr/bin/planforge"] = (binary.read_bytes(), 0o755, False)
    files["usr/share/doc/planforge/copyright"] = ((ROOT / "LICENSE").read_bytes(), 0o644, False)
    return files


def layer_of(files, seconds):
    """A tar of the files, sorted, with the folders that they and the running image need."""
    out = io.BytesIO()
    # Folder: mode and owner. A read-only root has nothing else to write to.
    own = {"data": (0o700, USER), "tmp": (0o1777, 0), "run/lock/planforge": (0o1777, 0)}
    # Where runtimes mount what the kernel gives.
    own.update({name: (0o755, 0) for name in ("dev", "proc", "sys")})
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders = set(own)
        for path in [*files, *own]:
            folders.update(str(parent) for parent in pathlib.PurePosixPath(path).parents if str(parent) != ".")
        for path in sorted({*folders, *files}):
            add(tar, path, files.get(path), own.get(path, (0o755, 0)), seconds)
    return out.getvalue()


def add(tar, path, file, folder, seconds):
    info = tarfile.TarInfo(path)
    info.mtime, info.uname, info.gname = seconds, "", ""
    if file is None:
        info.type, (info.mode, info.uid) = tarfile.DIRTYPE, folder
        info.gid = info.uid
        tar.addfile(info)
        return
    content, info.mode, is_link = file
    if is_link:
        info.type, info.linkname = tarfile.SYMTYPE, content
        tar.addfile(info)
    else:
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))


class Layout:
    """An OCI image layout on its way."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)

    def put(self, kind, content):
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def ended(self, manifest):
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}
        (self.folder / "index.json").write_text(json.dumps(index))
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


def blob(layout, descriptor):
    kind, _, digest = descriptor["digest"].partition(":")
    content = (layout / "blobs" / kind / digest).read_bytes()
    if kind != "sha256" or hashlib.sha256(content).hexdigest() != digest:
        raise Failure(f"{layout}: a blob is not what {descriptor['digest']} says")
    return content


def base_of(layout, architecture):
    """Configuration and layers of the one image for this machine that a layout holds."""
    try:
        manifests = json.loads((layout / "index.json").read_text())["manifests"]
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{layout} is no OCI image layout: {error}") from None
    while True:
        fits = [m for m in manifests if m.get("platform", {}).get("architecture", architecture) == architecture]
        if len(fits) != 1:
            raise Failure(f"{layout} holds {len(fits)} images for {architecture}; one was expected")
        document = json.loads(blob(layout, fits[0]))
        if "manifests" not in document:
            return json.loads(blob(layout, document["config"])), document["layers"]
        manifests = document["manifests"]


def sbom_of(archives, binary_sbom, version, seconds):
    document = json.loads(binary_sbom.read_text()) if binary_sbom else {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": [],
        "metadata": {"component": {"type": "application", "name": "planforge", "version": version}},
    }
    for name, archive in sorted(archives.items()):
        found = run("dpkg-deb", "--field", str(archive), "Version").decode().strip()
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        document["components"].append({
            "type": "library", "name": name, "version": found, "purl": f"pkg:deb/debian/{name}@{found}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        })
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def build(given, work):
    machine = os.uname().machine
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    version = run(str(given.binary), "--version").decode().split()[1]
    seconds = given.epoch if given.epoch is not None else int(run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    archives = {} if given.base else downloaded(given.packages or work / "packages")
    plain = layer_of(rootfs(given.binary, archives), seconds)
    staged = work / "layout"
    layout = Layout(staged)
    base_config, base_layers = base_of(given.base, architecture) if given.base else ({}, [])
    for descriptor in base_layers:
        layout.put(descriptor["mediaType"], blob(given.base, descriptor))
    kind, content = (f"{LAYER}+gzip", gzip.compress(plain, given.compress, mtime=0)) if given.compress else (LAYER, plain)
    layers = [*base_layers, layout.put(kind, content)]
    base_run = base_config.get("config", {})
    kept = [line for line in base_run.get("Env", []) if line.split("=")[0] not in ENVIRONMENT]
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": run("date", "-u", "-d", f"@{seconds}", "+%Y-%m-%dT%H:%M:%SZ").decode().strip(),
        "config": {
            "User": f"{USER}:{USER}",
            "WorkingDir": "/data",
            "Entrypoint": ["/usr/bin/planforge"],
            "Env": kept + [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "StopSignal": "SIGTERM",
            "Labels": {**base_run.get("Labels", {}), "org.opencontainers.image.title": f"planforge-{given.kind}", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
            **KINDS[given.kind],
        },
        "rootfs": {"type": "layers", "diff_ids": base_config.get("rootfs", {}).get("diff_ids", []) + [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": base_config.get("history", []) + [{"created_by": "deploy/images/build.py"}],
    }
    described = layout.put(CONFIG, json.dumps(config, sort_keys=True).encode())
    manifest = layout.put(MANIFEST, json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}, sort_keys=True).encode())
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
    layout.ended(manifest)
    if given.out.exists():
        raise Failure(f"{given.out} is there already")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    run("cp", "-r", str(staged), str(given.out))
    pathlib.Path(f"{given.out}.cdx.json").write_text(sbom_of(archives, given.sbom, version, seconds))
    print(manifest["digest"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--base", type=pathlib.Path, help="an OCI image layout to build upon")
    parser.add_argument("--sbom", type=pathlib.Path, help="what the binary is made of (deploy/release/sbom.py)")
    parser.add_argument("--packages", type=pathlib.Path, help="where Debian packages are kept")
    parser.add_argument("--epoch", type=int, help="time of all files; the commit's by default")
    parser.add_argument("--compress", type=int, choices=range(10), default=9, help="how hard; 0: not")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            build(given, pathlib.Path(work))
        except Failure as failure:
            sys.exit(f"build.py: {failure}")


if __name__ == "__main__":
    main()
