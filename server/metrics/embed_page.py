# SPDX-License-Identifier: Apache-2.0
"""live.html as a C++ source: the page, and the policy by which a browser runs that one script and style and nothing else.

embed_page.py live.html live_page.cc
"""
import base64
import hashlib
import pathlib
import re
import sys

CHUNK = 8000  # compilers need not take longer literals than 64 KiB


def source_hash(page, tag):
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def main():
    page = pathlib.Path(sys.argv[1]).read_text("utf-8")
    policy = "; ".join((
        "default-src 'none'", f"script-src {source_hash(page, 'script')}", f"style-src {source_hash(page, 'style')}",
        "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"))
    literals = "\n".join(f'R"pinfeed({page[i:i + CHUNK]})pinfeed"' for i in range(0, len(page), CHUNK))
    pathlib.Path(sys.argv[2]).write_text(
        f'#include "server/metrics/live_page.h"\nnamespace pinfeed {{\nconst std::string_view kLivePage =\n{literals};\n'
        f'const std::string_view kLivePagePolicy = "{policy}";\n}}\n', "utf-8")


if __name__ == "__main__":
    main()
