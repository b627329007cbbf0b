"""The build of the site refuses pages whose links, navigation or external addresses are wrong."""

import subprocess
import sys

from tests.support.databases import ROOT

PAGES = {
    "docs/index.md": "# Index\n\n## Part\n\n- [One](one.md)\n",
    "docs/one.md": "# One\n\n[no page](none.md), [no section](two.md#none), [outside](https://unlisted.test/)\n",
    "docs/two.md": "# Two\n",
    "docs/decisions/README.md": "# Decisions\n",
}


def test_a_wrong_page_fails_the_build(tmp_path):
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", str(tmp_path), str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for told in (
        "'none.md'",
        "local id not found in doc 'docs/two': 'none'",
        "two.md: WARNING: document isn't included in any toctree",
        "https://unlisted.test/ is not in docs/external-addresses.txt",
    ):
        assert told in done.stderr
    assert 'url=docs/index.html"' in (site / "index.html").read_text()
    navigation = (site / "docs" / "one.html").read_text()
    assert "Part" in navigation
