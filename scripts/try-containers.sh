#!/usr/bin/env bash
# Build both images, start deploy/compose.yaml with three sites on scans of digits, and wait until all parties exit with
# 0. No test calls this script: it needs root, a container engine with compose, and a base image (several GB, minutes).
#
#     scripts/try-containers.sh                                       # Docker
#     ENGINE=podman COMPOSE=podman-compose scripts/try-containers.sh
#
# BUILD_OPTIONS (--build-arg PYTHON_IMAGE=…, say) go to both builds, COMPOSE_OPTIONS (a second -f FILE) to compose.
set -euo pipefail
cd "$(dirname "$0")/.."
ENGINE=${ENGINE:-docker} COMPOSE=${COMPOSE:-docker compose} VERSION=0.1.0
PROTOSEAL=$PWD/.venv/bin/protoseal
SITES="north south west"
[ -x "$PROTOSEAL" ] || { echo "$PROTOSEAL is missing: run make env"; exit 1; }
FOLDER=$(mktemp -d)
export PROTOSEAL_ETC=$FOLDER/etc PROTOSEAL_DATA=$FOLDER/data

compose() {
    # shellcheck disable=SC2086  # both are lists of words
    $COMPOSE -f deploy/compose.yaml ${COMPOSE_OPTIONS:-} "$@"
}

party() {  # NAME, and the options of its request
    local own=$PROTOSEAL_ETC/$1 secret=$PROTOSEAL_ETC/secrets/$1
    mkdir -p "$own"
    cp deploy/samples/agreement.toml "$FOLDER/ca/ca.pem" "$own"
    head -c 24 /dev/urandom | base64 > "$secret"
    "$PROTOSEAL" pki request --dir "$own" --federation hospital-net "${@:2}" --passphrase-file "$secret"
    "$PROTOSEAL" pki approve --ca "$FOLDER/ca" --request "$own/request.pem" --out "$own/certificate.pem" \
        --fingerprint "$("$PROTOSEAL" pki show "$own/request.pem" | sed -n 's/^fingerprint *//p')" \
        --passphrase-file "$FOLDER/passphrase"
    chmod 0400 "$secret"
}

umask 077
mkdir -p "$PROTOSEAL_ETC/secrets" "$PROTOSEAL_DATA"
head -c 24 /dev/urandom | base64 > "$FOLDER/passphrase"
"$PROTOSEAL" pki init --dir "$FOLDER/ca" --federation hospital-net --passphrase-file "$FOLDER/passphrase"
party coordinator --coordinator --host fl.example.org
cp deploy/samples/service-coordinator.toml "$PROTOSEAL_ETC/coordinator/coordinator.toml"
for NAME in $SITES; do
    party "$NAME" --site "$NAME"
    sed -e "s/north/$NAME/g" -e '/^# \[pins\]/,$d' deploy/samples/service-site.toml > "$PROTOSEAL_ETC/$NAME/site.toml"
    mkdir "$PROTOSEAL_DATA/$NAME"
done
.venv/bin/python - "$PROTOSEAL_DATA" $SITES <<'EOF'
import sys
from pathlib import Path

from protoseal.splits import mixed
from secure_client.data.samples import TrainTest
from secure_client.data.published import make_digit_domains
from secure_client.data.npz import write_npz

digits = make_digit_domains(seed=0)
parts = mixed(digits, sites=3, n=9, max_per_class=25, seed=0)
for name, site in zip(sys.argv[2:], parts, strict=True):
    write_npz(Path(sys.argv[1]) / name / "data.npz", TrainTest(site.train, site.test, digits.classes, site.domains))
EOF
chown -R 10001:10001 "$PROTOSEAL_ETC" "$PROTOSEAL_DATA"

for IMAGE in coordinator site; do
    # shellcheck disable=SC2086  # a list of words
    "$ENGINE" build ${BUILD_OPTIONS:-} -f "deploy/docker/$IMAGE.Dockerfile" -t "protoseal-$IMAGE:$VERSION" .
done
trap 'compose down --volumes; rm -rf "$FOLDER"' EXIT
compose up --detach --no-build
for NAME in coordinator $SITES; do
    STATUS=$("$ENGINE" wait "$("$ENGINE" ps --all --quiet --filter "label=com.docker.compose.project=protoseal" \
        --filter "label=com.docker.compose.service=$NAME")")
    compose logs "$NAME" | tail -n 2
    [ "$STATUS" = 0 ] || { echo "$NAME exited with $STATUS"; exit 1; }
done
echo "All parties exited with 0."
