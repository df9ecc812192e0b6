#!/usr/bin/env bash
# Everything that a change must pass.
set -euo pipefail

case ${1:-} in -h | --help)
  cat <<'HELP'
Usage: bash tests/run.sh

Runs everything that a change must pass: formatting, lints, documentation, all tests on a real Kubernetes control plane
and, where there is one, a real Slurm, the examples, and the packages of the libraries. Goes on after a failure and ends
with a line "N passed, N failed, N skipped"; the status is 0 if nothing failed.

It needs Rust and a C compiler. The first run builds the control plane from its Go modules (about 8 minutes on 2 cores,
see tests/control-plane/build.sh --help). As root on a system with apt-get it installs what the tests of Slurm need,
without starting a service; elsewhere those tests say that they are skipped.

  SPUR_TEST_CACHE       where built programs are kept (default: ${XDG_CACHE_HOME:-$HOME/.cache}/spur-sdk)
  SPUR_TEST_KUBERNETES  the Kubernetes version of the control plane, X.Y.Z
  SPUR_TEST_KEEP_LOGS   when not empty, the logs of every control plane are kept in the cache
  KUBEBUILDER_ASSETS    a folder with etcd, kube-apiserver and so on to use instead of built ones
HELP
  exit 0
  ;;
esac

# shellcheck source=tests/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
usual_steps
finish
