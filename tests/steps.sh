# shellcheck shell=bash
# Sourced by run.sh and long.sh: what a run's steps have in common, and the steps of run.sh.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
libraries=(spur-sdk spur-sdk-quota)
control_plane=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)
cache=${SPUR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spur-sdk}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Tests add a line "NAME: reason" for what they skip.
export SPUR_TEST_SKIPS=$work/skips
: >"$SPUR_TEST_SKIPS"
# A snapshot is written by hand only; which ones are used is noted for the check of those that are not.
export INSTA_UPDATE=no INSTA_SNAPSHOT_REFERENCES_FILE=$work/snapshots
: >"$INSTA_SNAPSHOT_REFERENCES_FILE"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

passed=0 failed=0 ignored=0
failures=()

has() { command -v "$1" >/dev/null 2>&1; }

skip() { # NAME REASON
  printf '%s: %s\n' "$1" "$2" >>"$SPUR_TEST_SKIPS"
  printf 'SKIPPED %s: %s\n' "$1" "$2" >&2
}

# Runs COMMAND in a shell of its own, in which any failing command ends it; a failure is counted, and the run goes on.
# Must not stand in a condition: there bash would let commands fail.
step() { # TITLE COMMAND...
  local title=$1 log=$work/log start=$SECONDS statuses tests
  shift
  printf '\n=== %s\n' "$title"
  set +e
  (
    set -e
    "$@"
  ) 2>&1 | tee "$log"
  statuses=("${PIPESTATUS[@]}")
  set -e
  tests=$(awk '/^test result: / { for (i = 2; i <= NF; i++) count[$i] += $(i - 1) }
    END { print count["passed;"] + 0, count["failed;"] + 0, count["ignored;"] + 0 }' "$log")
  read -r -a tests <<<"$tests"
  passed=$((passed + tests[0])) failed=$((failed + tests[1])) ignored=$((ignored + tests[2]))
  if [ "${statuses[0]}" -eq 0 ] && [ "${statuses[1]}" -eq 0 ]; then
    passed=$((passed + 1))
    printf -- '--- done in %d s\n' $((SECONDS - start))
  else
    failed=$((failed + 1))
    failures+=("$title")
    printf -- '--- FAILED after %d s (status %d)\n' $((SECONDS - start)) "${statuses[0]}"
  fi
}

# Prints what was skipped, what failed, and the counts; its status is the run's.
finish() {
  local skipped line
  # What skips itself has ended well, and was counted so: it counts once, as skipped.
  skipped=$(sort -u "$SPUR_TEST_SKIPS" | grep -c . || true)
  passed=$((passed - skipped))
  printf '\n=== Summary after %d s\n' "$SECONDS"
  [ "$ignored" -eq 0 ] || printf '%d tests are marked as long: tests/long.sh runs them.\n' "$ignored"
  while read -r line; do printf 'SKIPPED %s\n' "$line"; done < <(sort -u "$SPUR_TEST_SKIPS")
  for line in "${failures[@]}"; do printf 'FAILED %s\n' "$line"; done
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ]
}

# Debian packages that the tests can use, when this is root on such a system: the parts of a Slurm, and shellcheck.
install_tools() {
  local program package missing=()
  has cc || {
    echo "There is no C compiler: install one."
    return 1
  }
  while read -r program package; do
    has "$program" || [ -x "/usr/sbin/$program" ] || missing+=("$package")
  done <<'TABLE'
slurmdbd slurmdbd
sacctmgr slurm-client
mariadbd mariadb-server
shellcheck shellcheck
TABLE
  if [ ${#missing[@]} -eq 0 ]; then
    echo "All tools are here."
    return
  fi
  if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
    echo "Missing: ${missing[*]}. Only root on a system with apt-get gets them installed; tests that need them are skipped."
    return
  fi
  echo "Installing with apt-get, without starting their services: ${missing[*]}"
  # The system asks this file whether a package may start its service: 101 is no.
  local policy=/usr/sbin/policy-rc.d status=0
  if [ -e "$policy" ]; then
    policy=
  else
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$work/apt" 2>&1 ||
    status=$?
  [ -z "$policy" ] || rm -f "$policy"
  [ $status -eq 0 ] || tail -n 30 "$work/apt"
  return $status
}

build_control_plane() {
  if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    echo "KUBEBUILDER_ASSETS is set: tests take what it holds and build the rest when they need it."
    return
  fi
  bash tests/control-plane/build.sh "$cache" "${SPUR_TEST_KUBERNETES:-default}" "${control_plane[@]}"
}

lint_library() { # NAME
  cargo clippy -p "$1" --all-targets -- -D warnings
  cargo clippy -p "$1" --no-default-features -- -D warnings
  cargo clippy -p "$1" --all-features --all-targets -- -D warnings
}

document() {
  export RUSTDOCFLAGS='-D warnings'
  cargo doc --workspace --no-deps
  local library
  for library in "${libraries[@]}"; do cargo doc -p "$library" --no-deps --all-features; done
}

package() {
  local arguments=() library
  for library in "${libraries[@]}"; do
    arguments+=(-p "$library")
    # Cargo unpacks a package that another needs beside those of registries and never looks whether it is still the
    # same: what an earlier run left there would be tested in the place of what is here.
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/"$library"-[0-9]*
  done
  # What is not committed yet is tested as well.
  cargo package --allow-dirty "${arguments[@]}"
}

# Each example ends by itself and well.
run_examples() {
  local file name
  for file in examples/*.rs examples/*/*.rs; do
    case $file in */build.rs | */lib.rs | */mod.rs | examples/tests/* | examples/benches/*) continue ;; esac
    [ -e "$file" ] || continue
    grep -q 'fn main' "$file" || continue
    name=$(basename "$file" .rs)
    [ "$name" != main ] || name=$(basename "$(dirname "$file")")
    printf -- '-- %s\n' "$name"
    timeout 300 cargo run --quiet --example "$name" </dev/null
  done
}

# Snapshots that no test has read. A skipped test reads none, so then nothing is said.
check_snapshots() {
  if grep -q -v '^step ' "$SPUR_TEST_SKIPS"; then
    skip 'step unreferenced snapshots' 'some tests were skipped, so their snapshots look unused'
    return
  fi
  xargs -r -d '\n' realpath -m -- <"$INSTA_SNAPSHOT_REFERENCES_FILE" | sort -u >"$work/read"
  find . -path ./target -prune -o -name '*.snap' -type f -print0 | xargs -r -0 realpath -- | sort -u >"$work/there"
  comm -13 "$work/read" "$work/there" >"$work/unread"
  printf '%d snapshots, %d of them unused\n' "$(grep -c . "$work/there" || true)" "$(grep -c . "$work/unread" || true)"
  cat "$work/unread"
  [ ! -s "$work/unread" ]
}

check_scripts() {
  local file dialect
  has shellcheck || skip 'step shellcheck' 'shellcheck is not installed'
  while IFS= read -r -d '' file; do
    case $(head -n 1 "$file") in
      '#!'*bash | *shell=bash) dialect="bash" ;;
      *) dialect="sh" ;; # what programs hand to sh has no first line of its own
    esac
    "$dialect" -n "$file"
    ! has shellcheck || shellcheck --external-sources --severity=warning --shell="$dialect" "$file"
  done < <(find tests bins examples .ci -name target -prune -o -type f \( -name '*.sh' -o -path .ci/run \) -print0)
}

check_dependencies() {
  if has cargo-deny; then
    cargo deny check bans licenses sources
  else
    skip 'step cargo deny' 'cargo-deny is not installed; tests/long.sh builds it'
  fi
}

# Types of other crates in public signatures; the tool reads rustdoc's JSON, which only a nightly writes.
check_external_types() {
  if ! has cargo-check-external-types; then
    skip 'step external types' 'cargo-check-external-types is not installed (it needs a nightly Rust of its date)'
    return
  fi
  local library
  for library in "${libraries[@]}"; do
    cargo +nightly check-external-types --all-features --manifest-path "$library/Cargo.toml"
  done
}

test_everything() {
  # Tests on real control planes wait for them most of the time.
  RUST_TEST_THREADS=${RUST_TEST_THREADS:-5} cargo test --workspace --no-fail-fast
}

usual_steps() {
  local library
  step 'Tools that the tests use' install_tools
  step 'Format' cargo fmt --all --check
  step 'Scripts' check_scripts
  step 'Test control plane' build_control_plane
  step 'Lints: the workspace' cargo clippy --workspace --all-targets -- -D warnings
  for library in "${libraries[@]}"; do
    step "Lints: $library alone, without and with all its features" lint_library "$library"
  done
  step 'Documentation' document
  step 'Tests' test_everything
  step 'Snapshots' check_snapshots
  step 'Examples' run_examples
  step 'Packages' package
  step 'Dependencies' check_dependencies
  step 'External types' check_external_types
}
