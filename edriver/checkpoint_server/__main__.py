"""`python -m edriver.checkpoint_server`: one host's checkpoint server, as its agent starts it."""

import sys

from edriver.checkpoint_server.main import main

sys.exit(main())
