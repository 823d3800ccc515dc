"""`python -m tunetui.demo`: the demo's server."""

import sys

from tunetui.demo.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
