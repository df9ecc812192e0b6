#!/usr/bin/env bash
# What tests/run.sh does, and what takes longer.
set -euo pipefail

case ${1:-} in -h | --help)
  cat <<'HELP'
Usage: bash tests/long.sh

Runs all of tests/run.sh (see its --help) and then what takes longer: the tests on a control plane of a second
Kubernetes version, the tests that are marked as long, the examples as the README has them, and cargo deny, which is
built into the cache if it is not installed. Ends with a line "N passed, N failed, N skipped".

  SPUR_TEST_SECOND_KUBERNETES  the second version (default: 1.35.4)
HELP
  exit 0
  ;;
esac

# shellcheck source=tests/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# shellcheck disable=SC2317 # called through `step`
second_version() {
  export SPUR_TEST_KUBERNETES=${SPUR_TEST_SECOND_KUBERNETES:-1.35.4}
  unset KUBEBUILDER_ASSETS
  build_control_plane
  local manifest arguments=()
  for manifest in tests/*/Cargo.toml; do
    arguments+=(-p "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
  done
  cargo test --no-fail-fast "${arguments[@]}"
}

# shellcheck disable=SC2317
build_cargo_deny() {
  [ -x "$cache/cargo-deny/bin/cargo-deny" ] ||
    cargo install --quiet --locked --root "$cache/cargo-deny" cargo-deny
}

has cargo-deny || step 'Build cargo-deny' build_cargo_deny
PATH=$PATH:$cache/cargo-deny/bin
usual_steps
step 'Tests on a second Kubernetes version' second_version
step 'Tests that are marked as long' cargo test --workspace --no-fail-fast -- --ignored
ignored=0
if grep -rqs 'fn main' examples --include=quickstart.rs; then
  step 'Quick start as in the README' timeout 1800 cargo run --release --example quickstart
fi
finish
