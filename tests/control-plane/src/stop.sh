#!/bin/sh
# Stops this control plane and removes its folder.
# With --when-input-ends: as soon as standard input ends, unless a line "keep" came before.
{
  dir=$(cd "$(dirname "$0")" && pwd) || exit 1
  cd / || exit 1
  if [ "${1:-}" = --when-input-ends ]; then
    trap '' INT TERM HUP
    while read -r line; do
      [ "$line" != keep ] || exit 0
    done
  fi
  # From here on no program can start, since each first puts its process id into the folder by its old name.
  mv "$dir" "$dir.gone" || exit 0
  # Each program names the folder in its arguments: a process that does not is a stranger with an old number.
  ours() { grep -qaF "$dir/" "/proc/$1/cmdline" 2>/dev/null; }
  for file in "$dir.gone"/pids/*.pid; do
    read -r pid 2>/dev/null <"$file" || continue
    ours "$pid" && kill -9 "$pid"
  done
  for file in "$dir.gone"/pids/*.pid; do
    read -r pid 2>/dev/null <"$file" || continue
    while ours "$pid"; do sleep 0.05; done
  done
  tries=0
  until rm -rf "$dir.gone" || [ "$tries" -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.05
  done
  exit 0
}
