# Keeps the daemons of one lab. Arguments: the lab's folder, setsid, mariadb-install-db, mariadbd, slurmdbd.
# Reads from standard input the names of daemons to start, one a line. Where the input ends, and it ends with the
# process that holds the other side, even if that was killed, it kills what it started and removes the folder.
# Everything in there is for the bin, so nothing is stopped gently.
dir=$1 setsid=$2 install=$3 mariadbd=$4 slurmdbd=$5
settings=$dir/etc/my.cnf
pids=
finish() {
    for pid in $pids; do
        # The daemon with all its children; alone, where it has no process group of its own yet.
        kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null
    done
    wait
    cd /
    # A program that the test was running when it was killed may still write for a moment.
    tries=50
    until rm -rf -- "$dir" || [ $tries = 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
}
trap finish EXIT
trap 'exit 1' HUP INT TERM
cd "$dir" || exit 1
while IFS= read -r name; do
    case $name in
    mariadbd)
        exec "$setsid" sh -c '
            "$1" --defaults-file="$3" --user=root --auth-root-authentication-method=normal --skip-test-db \
                >log/install.out 2>&1 &&
                exec "$2" --defaults-file="$3"
        ' install "$install" "$mariadbd" "$settings"
        ;;
    slurmdbd)
        exec "$setsid" env LD_PRELOAD="$dir/etc/loopback.so" MYSQL_UNIX_PORT="$dir/run/db.sock" \
            SLURM_CONF="$dir/etc/slurm.conf" "$slurmdbd" -D
        ;;
    esac </dev/null >"log/$name.out" 2>&1 &
    pids="$! $pids"
    # Written aside and renamed, so that whoever waits for it reads all of it.
    echo $! >"run/$name.new" && mv "run/$name.new" "run/$name.pid"
done
