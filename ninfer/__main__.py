"""``python -m ninfer``: the same as the ``ninfer`` command."""

import sys

from ninfer.cli import main

sys.exit(main())
