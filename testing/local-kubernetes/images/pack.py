#!/usr/bin/env python3
"""Packs a folder as a container image: an OCI image layout in one tar, with one uncompressed layer.

The same folder always gives the same bytes (times are zero, names are sorted), so that the digest says
whether an image has changed. Standard library only. Prints the digest of the image's manifest.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EPOCH = "1970-01-01T00:00:00Z"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", help="folder that becomes the root file system")
    parser.add_argument("out", help="the tar to write")
    parser.add_argument("--ref", action="append", required=True, help="full image reference; may be repeated")
    parser.add_argument("--entrypoint", default="[]", help="JSON list")
    parser.add_argument("--cmd", default="[]", help="JSON list")
    parser.add_argument("--user", default="")
    parser.add_argument("--workdir", default="/")
    parser.add_argument("--port", action="append", default=[])
    parser.add_argument("--exclude", action="append", default=[], help="path to leave out, with all below it")
    return parser.parse_args()


def digest_of_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_layer(root, out, exclude):
    def keep(entry):
        path = "/" + entry.name
        if any(path == e or path.startswith(e + "/") for e in exclude):
            return None
        entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    # tarfile itself walks folders in sorted order.
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(os.listdir(root)):
            tar.add(os.path.join(root, name), arcname=name, filter=keep)


def without_empty(values):
    return {key: value for key, value in values.items() if value}


def main():
    options = arguments()
    layer = options.out + ".layer"
    write_layer(options.root, layer, [path.rstrip("/") for path in options.exclude])
    layer_digest, layer_size = digest_of_file(layer), os.path.getsize(layer)
    here = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    blobs = {}

    def blob(kind, value):
        data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}

    config = here | {
        "created": EPOCH,
        "config": without_empty({
            "Env": ["PATH=" + PATH],
            "WorkingDir": options.workdir,
            "User": options.user,
            "Entrypoint": json.loads(options.entrypoint),
            "Cmd": json.loads(options.cmd),
            "ExposedPorts": {port: {} for port in options.port},
        }),
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + layer_digest]},
        "history": [{"created": EPOCH, "created_by": "pack.py"}],
    }
    manifest_kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = blob(manifest_kind, {
        "schemaVersion": 2,
        "mediaType": manifest_kind,
        "config": blob("application/vnd.oci.image.config.v1+json", config),
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": "sha256:" + layer_digest,
            "size": layer_size,
        }],
    })
    # One entry a name: containerd makes an image of each.
    entries = [manifest | {
        "platform": here,
        "annotations": {
            "io.containerd.image.name": ref,
            "org.opencontainers.image.ref.name": ref.rsplit(":", 1)[-1],
        },
    } for ref in options.ref]
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": entries}

    with tarfile.open(options.out, "w") as tar:
        def put(name, data):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))

        put("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        put("index.json", json.dumps(index, sort_keys=True).encode())
        for digest, data in blobs.items():
            put("blobs/sha256/" + digest, data)
        entry = tarfile.TarInfo("blobs/sha256/" + layer_digest)
        entry.size, entry.mode = layer_size, 0o644
        with open(layer, "rb") as file:
            tar.addfile(entry, file)
    os.unlink(layer)
    print(manifest["digest"])


if __name__ == "__main__":
    main()
