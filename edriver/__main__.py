"""`python -m edriver`: the same as the command `edriver`."""

import sys

from edriver.cli.start import main

sys.exit(main())
