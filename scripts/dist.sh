#!/usr/bin/env bash
# Build dist/: the source archive and the wheel, each with its software bill of materials, checked and installed once.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
bill=protoseal.cdx.json
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rm -rf dist build
"$python" scripts/sbom.py "$bill"
"$python" -m build --outdir "$scratch/built" .
mkdir dist
cp "$scratch"/built/*.tar.gz dist/

# PEP 770 keeps bills of materials in .dist-info/sboms. setuptools has no setting for that folder.
"$python" -m wheel unpack --dest "$scratch/wheel" "$scratch"/built/*.whl
info=$(echo "$scratch"/wheel/*/*.dist-info)
mkdir "$info/sboms"
cp "$bill" "$info/sboms/"
"$python" -m wheel pack --dest-dir dist "$scratch"/wheel/*

"$python" -m twine check --strict dist/*

# The wheel must work in an empty environment, from a folder outside the checkout.
"$python" -m venv "$scratch/empty"
"$scratch/empty/bin/python" -m pip install --quiet --disable-pip-version-check dist/*.whl
(cd "$scratch" && empty/bin/protoseal --help >/dev/null && empty/bin/protoseal pki init --help >/dev/null)
test -s "$scratch"/empty/lib/python3*/site-packages/protoseal-*.dist-info/sboms/"$bill"
tar --list --file dist/*.tar.gz --wildcards "protoseal-*/$bill"
ls -l dist
