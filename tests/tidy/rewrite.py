"""`python -m tests.tidy.rewrite`: make anew what the documentation takes from the code."""

import sys

from tests.tidy.blocks import documents, rewritten


def main() -> None:
    """Rewrite every document whose blocks are out of step, and name it."""
    for path in documents():
        before = path.read_text()
        after = rewritten(before)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
