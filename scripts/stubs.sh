#!/usr/bin/env bash
# Generate the protobuf stubs in proto/; with --check, fail unless the committed stubs are current.
# The generator is older than the newest runtime on purpose. Generated code refuses a runtime older than its generator,
# and runtimes accept code of the previous major version, so stubs of protobuf 6 load under protobuf 6 and 7. The
# generator's pins contradict the newest runtime's, hence an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=.venv-stubs
PINS=(grpcio-tools==1.76.0 mypy-protobuf==3.7.0 'setuptools<81')
SOURCE=protoseal_wire/v1/protoseal.proto

if ! [ -e "$TOOLS/.ready" ] || [ "$(cat "$TOOLS/.ready")" != "${PINS[*]}" ]; then
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
  "$python" -m venv --clear "$TOOLS"
  "$TOOLS/bin/python" -m pip install --quiet --disable-pip-version-check "${PINS[@]}"
  echo "${PINS[*]}" > "$TOOLS/.ready"
fi

out=proto
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
PATH="$PWD/$TOOLS/bin:$PATH" "$TOOLS/bin/python" -m grpc_tools.protoc -I proto \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "$SOURCE"

if [ "$out" != proto ]; then
  for made in "$out"/protoseal_wire/v1/*; do
    diff -u "proto/protoseal_wire/v1/$(basename "$made")" "$made" ||
      { echo "the stubs are not current: run 'make stubs' and commit them" >&2; exit 1; }
  done
fi
