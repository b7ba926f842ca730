"""Builds the wheel, a zip of the package. It needs only the standard library, so pip needs no network.

pip calls build_wheel, and deploy/release.sh runs `python3 build_wheel.py DIR`. Equal files give equal bytes.
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.MULTILINE))
    name = f"{project['name']}-{project['version']}"
    metadata = [
        "Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}",
        "License: Apache-2.0", f"Requires-Python: {project['requires-python']}", "Description-Content-Type: text/markdown", "",
    ]
    files = {f"countd/{path.name}": path.read_text() for path in sorted((HERE / "countd").glob("*.py"))}
    files["countd/py.typed"] = ""  # the package has types
    files[f"{name}.dist-info/METADATA"] = "\n".join(metadata) + "\n" + (HERE / "README.md").read_text()
    files[f"{name}.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: countd\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{name}.dist-info/RECORD"
    hashes = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for path, text in files.items()}
    files[record] = "".join(f"{path},sha256={hashes[path]},{len(text.encode())}\n" for path, text in files.items()) + f"{record},,\n"
    wheel = f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)  # has a fixed time of 1980, so that builds are reproducible
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, text)
    return wheel


if __name__ == "__main__":
    build_wheel(sys.argv[1])
