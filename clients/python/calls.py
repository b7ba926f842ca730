"""Writes the table of calls in README.md from the source. A test compares both.

Both clients give the same answers, so what a call returns is that of the JavaScript client's table.
"""

import inspect
import pathlib
import re

from countd import Client, Read, Writer

HERE = pathlib.Path(__file__).parent


def described():
    """Returns README.md with a new table of the calls."""
    rows = re.findall(r"^\| `(writer\.)?(\w+)\(.*?\)` \| (.*?) \| .* \|$", (HERE.parent / "js/README.md").read_text(), re.MULTILINE)
    missing = {kind: {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"} for kind in (Client, Writer)}
    missing[Client].remove("close")
    lines = ["| call | answer | |", "|---|---|---|"]
    for before, name, answer in rows:
        kind = Writer if before else Client
        name = re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name)
        missing[kind].remove(name)
        method = getattr(kind, name)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        call = str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters])).replace(repr(Read()), "Read()")
        about = " ".join(inspect.getdoc(method).split())
        lines.append(f"| `{before}{name}{call}` | {answer.replace('for await: ', 'iterator of ')} | {about} |")
    if any(missing.values()):
        raise LookupError(f"the JavaScript client lacks {missing}")
    return re.sub(r"\| call .*\n(\|.*\n)*", lambda _: "\n".join(lines) + "\n", (HERE / "README.md").read_text())


if __name__ == "__main__":
    (HERE / "README.md").write_text(described())
