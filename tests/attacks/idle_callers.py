"""A stranger that connects and sends nothing: `python -m tests.attacks.idle_callers COUNT CHURN ADDRESS:PORT ...`.

It keeps COUNT connections to each address, those that are refused or still being made included, and says "all are
there" when it has begun them. With CHURN it hangs up on all of them at once every so many seconds, comes again at the
same moment, and reports that; 0: it stays. It lives until it is killed or its standard input ends.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys


def call(where: str) -> socket.socket:
    address, _, port = where.rpartition(":")
    caller = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    caller.setblocking(False)
    caller.connect_ex((address, int(port)))
    return caller


def main(count: int, churn: float, wheres: list[str]) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # it would sit on another machine
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    callers = [call(where) for where in wheres for _ in range(count)]
    print("all are there", flush=True)
    while not select.select([sys.stdin], [], [], churn or None)[0]:
        for caller in callers[::10]:  # their ends keep the server busy, so that what follows comes at once
            caller.close()
        fresh = [call(where) for where in wheres for _ in range(4)]
        for caller in callers:
            caller.close()
        callers = [*fresh, *(call(where) for where in wheres for _ in range(count))]
        print("all are there again", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
