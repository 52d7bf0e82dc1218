"""A small shell that outlives a dead supervisor for a moment, to end its tasks. Stdlib only.

A task without a supervisor is lost, and nobody enforces its lease: it could run next to its
replacement. When the supervisor's pipe closes, the shell asks container runtimes to end, kills
everything in the tasks' control groups and every process whose environment names that supervisor,
and removes empty groups, under the lock that keeps another supervisor from using them.
"""

# No pathlib or subprocess here: they would cost the supervisor memory.
# ruff: noqa: SIM105

import os

from agents.host import processes
from agents.isolation import cgroups

#: Variable in the environment of tasks that names the supervisor which started them.
VARIABLE = "MUSTER_SUPERVISOR"
SHELL = "/bin/sh"
#: Seconds in which environments are read, all together and, if a process made that take longer, one
#: by one: a process can make its readers wait for ever.
READ_S, SLOW_S = 1, 20
#: Container runtimes are asked to end, as far as they are found in time; the kernel has already
#: asked those that were restricted. Then the groups are killed, by which a process that nobody can
#: read ends, too. Each pass kills everything it finds; it stops after two
#: passes that find nothing, or after 500.
SCRIPT = (
    """
named() {
  timeout -s KILL READ grep -lsxzF -e "$1" /proc/[0-9]*/environ
  [ $? -eq 137 ] || return 0
  printf '%s\\0' /proc/[0-9]*/environ |
    timeout -s KILL SLOW xargs -0 -n 1 -P 16 timeout -s KILL READ grep -lsxzF -e "$1"
}
read -r word && [ "$word" = bye ] && exit 0
asked=$(timeout -s KILL READ sh -c '
  for file in $(grep -lsxzF -e "$1" /proc/[0-9]*/environ); do
    grep -qsxzF -e RUNTIME=1 "$file" && grep -qsxzF -e run "${file%environ}cmdline" || continue
    pid=${file#/proc/}
    pid=${pid%/environ}
    kill -TERM "$pid" 2>/dev/null && echo "$pid"
  done' sh "$1=$2")
passes=0
while [ -n "$asked" ] && [ $passes -lt PASSES ]; do
  sleep 0.02
  passes=$((passes + 1))
  left=
  for pid in $asked; do [ -e "/proc/$pid/exe" ] && left="$left $pid"; done
  asked=$left
done
case "$4" in
  cgroup.kill) echo 1 > "$3/cgroup.kill" ;;
  cgroup.freeze | freezer)
    [ "$4" = freezer ] && on=FROZEN off=THAWED file=freezer.state
    [ "$4" = freezer ] || on=1 off=0 file=cgroup.freeze
    echo $on > "$3/$file"
    for pid in $(find "$3" -name cgroup.procs -exec cat {} +); do kill -KILL "$pid"; done
    echo $off > "$3/$file"
    ;;
esac 2>/dev/null
passes=0
clean=0
while [ $clean -lt 2 ] && [ $passes -lt 500 ]; do
  passes=$((passes + 1))
  clean=$((clean + 1))
  for file in $(named "$1=$2"); do
    pid=${file#/proc/}
    kill -KILL "${pid%/environ}" 2>/dev/null && clean=0
  done
  sleep 0.02
done
root=$5
shift 5
clear() {
  for base; do
    echo $$ > "${base%/*}/cgroup.procs"
    passes=0
    while [ -d "$base" ] && [ $passes -lt 100 ]; do
      rmdir "$base"/run/* "$base/run" "$base"/COMMANDS/*/* "$base"/COMMANDS/* "$base/COMMANDS" \\
        "$base/OWN_GROUP" "$base" || sleep 0.02
      passes=$((passes + 1))
    done
  done
}
if [ ! -d "$root" ]; then
  clear "$@"
elif [ $# -gt 0 ] && command -v flock; then
  { flock -n 9 && clear "$@"; } 9>> "$root/supervisor.lock"
fi
""".replace("RUNTIME", processes.RUNTIME)
    .replace("READ", str(READ_S))
    .replace("SLOW", str(SLOW_S))
    .replace("OWN_GROUP", cgroups.SUPERVISOR_GROUP)
    .replace("COMMANDS", cgroups.COMMANDS_GROUP)
    .replace("PASSES", str(round(processes.ASKED_S / 0.02)))
)


def token(pid: int, ticks: int) -> str:
    """Return the name of a supervisor, unique on the machine since its boot."""
    return f"{pid}.{ticks}"


class Reaper:
    """The supervisor's side of its reaper shell."""

    def __init__(self, name: str, root: str, groups: tuple[str, str, list[str]]) -> None:
        self.name = name
        folder, how, bases = groups
        self._arguments = [folder, how, root, *bases]
        self.pid = -1
        self._pipe = -1

    def start(self) -> None:
        """Start the shell, or start it again after it has died."""
        if self._pipe >= 0:
            os.close(self._pipe)
        read, self._pipe = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        try:
            self.pid = os.posix_spawn(
                SHELL,
                [SHELL, "-c", SCRIPT, "muster-reaper", VARIABLE, self.name, *self._arguments],
                {"PATH": "/usr/bin:/bin"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read, 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, null, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(read)
            os.close(null)

    def dismiss(self) -> None:
        """Tell the shell to kill nothing, because the supervisor ends in order.

        The shell may have been killed a moment ago.
        """
        try:
            os.write(self._pipe, b"bye\n")
        except BrokenPipeError:
            pass
        os.waitpid(self.pid, 0)
