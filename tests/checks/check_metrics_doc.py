# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md must be what print_metrics (a program of the build) prints; --fix rewrites it. In: that program, the page."""
import pathlib
import subprocess
import sys


def main():
    program, page = sys.argv[1], pathlib.Path(sys.argv[2])
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    if "--fix" in sys.argv[3:]:
        page.write_text(printed, "utf-8")
    elif not page.exists() or page.read_text("utf-8") != printed:
        print(f"{page} is not what the table of metrics says; tests/checks/check_metrics_doc.py {program} {page} --fix rewrites it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
