"""Pictures of the manual, from the folder that `make demo` wrote: `python docs/pictures.py runs/demo`.

`demo.png` is the figure of the demo. `report.png` is its page in a headless Chromium, at a communication cost of 3.
`experiments/claims.py` draws `claims.png`.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent / "_static"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1216, 1310)  # of the page, in pixels
STATE = "C=3"  # of the page, at the end of its address


def save(source: Path, name: str) -> None:
    """Write a picture with a palette of 128 colours, a third as large as one with all colours."""
    full = Image.open(source).convert("RGB")
    small = full.quantize(128, Image.Quantize.MAXCOVERAGE, kmeans=1)
    small.save(PICTURES / name, optimize=True)
    print(f"wrote {PICTURES / name}")


def photograph(page: Path, picture: Path) -> None:
    """Write what a browser shows of a page.

    Raises:
        SystemExit: there is no browser.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no Chromium found: install chromium")
    width, height = SIZE
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags += [f"--window-size={width},{height}", "--virtual-time-budget=8000"]
    flags += [f"--user-data-dir={picture.parent}", f"--screenshot={picture}"]
    address = f"{page.resolve().as_uri()}#{STATE}"
    subprocess.run([browser, *flags, address], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Write both pictures."""
    parser = argparse.ArgumentParser(description="Write the pictures of the manual.")
    parser.add_argument("demo", type=Path, help="folder of make demo")
    folder = parser.parse_args().demo
    save(folder / "accuracy.png", "demo.png")
    with tempfile.TemporaryDirectory() as temporary:
        picture = Path(temporary) / "report.png"
        photograph(folder / "report.html", picture)
        save(picture, "report.png")


if __name__ == "__main__":
    main()
