#!/usr/bin/env python3
"""What the binary is made of, as CycloneDX 1.5 JSON: every crate that is compiled into it, with its digest and licence.

    sbom.py [--epoch SECONDS] > planforge.cdx.json

Read from `cargo metadata` and Cargo.lock of the tree. What only builds (build scripts, procedural macros) is listed with
the scope `excluded`. The same tree gives the same bytes.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = "planforge"


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)


def checksums():
    """SHA-256 of each crate's archive, as Cargo.lock has it."""
    found = {}
    for block in (ROOT / "Cargo.lock").read_text().split("[[package]]"):
        field = lambda name: re.search(rf'^{name} = "(.*)"$', block, re.MULTILINE)
        name, version, checksum = field("name"), field("version"), field("checksum")
        if name and version and checksum:
            found[name[1], version[1]] = checksum[1]
    return found


def reached(nodes, roots, kinds):
    """What `roots` depend on through edges of `kinds`."""
    seen, waiting = set(), list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for edge in nodes[name]["deps"]:
            if any(kind["kind"] in kinds for kind in edge["dep_kinds"]):
                waiting.append(edge["pkg"])
    return seen


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums, inside):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "required" if inside else "excluded",
        "purl": reference(package),
    }
    if package.get("license"):
        # Older crates write "MIT/Apache-2.0" for a choice.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def document(found, epoch):
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    root = next(id for id in found["workspace_members"] if packages[id]["name"] == BINARY)
    # A macro and all below it runs while compiling.
    for node in nodes.values():
        node["deps"] = [edge for edge in node["deps"] if edge["pkg"] in nodes]
    linked = {id: {**node, "deps": [] if is_macro(packages[id]) else node["deps"]} for id, node in nodes.items()}
    inside = {id for id in reached(linked, [root], {None}) if not is_macro(packages[id])}
    everything = reached(nodes, [root], {None, "build"})
    sums = checksums()
    order = sorted(everything - {root}, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    components = [component(packages[id], sums, id in inside) for id in order]
    dependencies = [
        {
            "ref": reference(packages[id]),
            "dependsOn": sorted(
                {
                    reference(packages[edge["pkg"]])
                    for edge in nodes[id]["deps"]
                    if edge["pkg"] in everything and any(kind["kind"] in (None, "build") for kind in edge["dep_kinds"])
                }
            ),
        }
        for id in [root, *order]
    ]
    main = packages[root]
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(epoch),
            "component": {
                "type": "application",
                "bom-ref": reference(main),
                "name": main["name"],
                "version": main["version"],
                "purl": reference(main),
                "licenses": [{"expression": main["license"]}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {**body, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"}


def timestamp(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epoch", type=int, default=int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    given = parser.parse_args()
    json.dump(document(metadata(given.target), given.epoch), sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
