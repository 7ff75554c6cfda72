"""`python -m edriver`: the same as the command `edriver`."""

import sys

from edriver.start import main

sys.exit(main())
