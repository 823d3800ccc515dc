"""Stands in for tunetui: starts one server, says its pids, waits to be killed. `parent.py LOG GRACE_S ARGV...`."""

import json
import os
import sys
import time
from pathlib import Path

from tunetui.engine.process import ServerProcess

log, grace_s, *argv = sys.argv[1:]
server = ServerProcess.start(argv, os.environ, Path(log), Path(log).parent, float(grace_s))
print(json.dumps({"server": server.pid, "warden": server._process.pid}), flush=True)
while True:
    time.sleep(60)
