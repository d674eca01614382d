"""``python -m rxloop.cli``."""

import sys

from rxloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
