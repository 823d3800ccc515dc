"""`python -m tunetui.demo --profile NAME --model MODEL [vLLM's flags]`: the demo's server.

TUNETUI_DEMO_START_S says how long a start takes.
"""

import os
import sys

from tunetui.demo.profiles import PROFILES
from tunetui.demo.server import SimulatedVllm, completed, vllm_flags
from tunetui.demo.start import Start

VERSION = "0.32.0+simulated"
START_S = 1.0


def main(words: list[str]) -> int:
    """The exit status."""
    parser = vllm_flags("tunetui.demo")
    parser.add_argument("--profile", choices=PROFILES, default="case")
    options = parser.parse_args(words)
    machine = PROFILES[options.profile].machine
    start_s = float(os.environ.get("TUNETUI_DEMO_START_S", START_S))
    return SimulatedVllm(Start(completed(options, machine.model), machine, VERSION, start_s)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
