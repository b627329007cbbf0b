"""`make screenshots`: the pictures that the documents show, from the running demo."""

import os
import struct
import subprocess
import sys
import zlib

import pytest

from example_project.screenshots.small_png import COLOURS, small_png
from tests.support.databases import ROOT

PROGRAM = (sys.executable, "-m", "example_project.screenshots")


def decoded(data):
    """Width, height, and the colours of all pixels."""
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(name + body),)
        chunks[name], at = body, at + 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows, palette = zlib.decompress(chunks[b"IDAT"]), chunks[b"PLTE"]
    pixels = [rows[y * (width + 1) + 1 + x] for y in range(height) for x in range(width)]
    return width, height, [tuple(palette[3 * number : 3 * number + 3]) for number in pixels]


def test_a_picture_of_few_colours_stays_as_it_is():
    pixels = [(255, 255, 255), (1, 2, 3), (1, 2, 3), (200, 100, 0), (0, 0, 255), (255, 255, 255)]
    png = small_png(3, 2, b"".join(bytes([*pixel, 255]) for pixel in pixels))
    assert decoded(png) == (3, 2, pixels)


def test_a_rare_colour_becomes_the_nearest_of_the_frequent_ones():
    frequent = [(red, 0, 0) for red in range(COLOURS)] * 2
    png = small_png(len(frequent) + 1, 1, b"".join(bytes([*pixel, 255]) for pixel in [*frequent, (77, 9, 3)]))
    assert decoded(png)[2] == [*frequent, (77, 0, 0)]


def test_without_a_browser_it_says_what_to_install(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(PROGRAM, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "apt-get install chromium chromium-driver" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(420)  # it starts servers, the demo and a browser, and waits for records to be rejected
@pytest.mark.usefixtures("own_servers", "browser_installed")
def test_it_takes_the_pictures_that_the_documents_show(tmp_path):
    started = ("DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS", "DJANGO_SETTINGS_MODULE", "CI")
    done = subprocess.run(
        [sys.executable, "-m", "outbox.devstack", "run", "--", *PROGRAM, "--folder", str(tmp_path)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in started},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {path.name for path in (ROOT / "docs" / "images").glob("admin-*.png")}
    assert {path.name for path in tmp_path.iterdir()} == shown
    for path in tmp_path.iterdir():
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert width == 1280, path.name
        assert height >= 500, path.name
