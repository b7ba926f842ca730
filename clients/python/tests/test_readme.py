"""README.md is true: its table of calls, and how to add the client to a project."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import calls  # noqa: E402
from test_client import WRITTEN, Server  # noqa: E402

ROOT = pathlib.Path(__file__).parents[3]


class ReadmeTest(unittest.TestCase):
    def test_calls(self):
        self.assertEqual((calls.HERE / "README.md").read_text(), calls.described(), "run `python3 calls.py`")

    def test_a_project(self):
        shell, program, printed = re.search(r"```sh\n(.*?)```.*?`like.py`.*?```python\n(.*?)```\n```out\n(.*?)```", (calls.HERE / "README.md").read_text(), re.DOTALL).groups()
        with tempfile.TemporaryDirectory() as project, Server(WRITTEN) as s:
            os.symlink(ROOT, f"{project}/countd")
            pathlib.Path(project, "like.py").write_text(program.replace("127.0.0.1:7400", s.addr))
            if subprocess.run([sys.executable, "-m", "venv", "env"], cwd=project, capture_output=True).returncode:
                self.skipTest("this Python has no venv; Debian's is in python3-venv")
            steps = shell.strip().split("\n")
            self.assertEqual(steps.pop(0), "python3 -m venv env")
            environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
            ran = subprocess.run(["sh", "-ec", "\n".join(steps)], cwd=project, env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual((ran.returncode, ran.stdout[-len(printed):]), (0, printed), ran.stderr)
            self.assertEqual(len(s.asked), 1)


if __name__ == "__main__":
    unittest.main()
