"""Writes the digests of a changed folder again, as a forger who knows the format would."""

import hashlib
import json


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def seal(folder, content=None):
    content = dict(manifest_of(folder) if content is None else content)
    content.pop("manifest_digest", None)
    shards = sorted(path.name for path in folder.glob("shard-*"))
    content["shard_digests"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in shards
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    content["manifest_digest"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def resealed(folder, **changes):
    """Change entries of the manifest, and seal the folder again."""
    seal(folder, {**manifest_of(folder), **changes})


def classifier_with(folder, **changes):
    """The classifier in the manifest, with some of its fields changed."""
    return {**manifest_of(folder)["classifier"], **changes}
