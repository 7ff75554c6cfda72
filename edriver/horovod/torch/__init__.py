"""`horovod.torch` where it is looked for: `import edriver.horovod.torch as hvd` is `import edriver.horovod as hvd`.

The modules of this folder, and of `edriver.horovod.common`, have the names of Horovod's, so that each import of a
script is changed in the same way: `horovod` becomes `edriver.horovod`.
"""

from edriver.horovod import *  # noqa: F403
