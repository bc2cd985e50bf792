"""Stands in for `gpumem.cudnn.child`: answers 512 bytes, and does what the number of groups says.

1 answers, 2 ends, 3 says nothing, 4 has no plan, 5 is refused by cuDNN, 6 is too old a cuDNN.
"""

import sys
import time

print("cudnn", 90801, flush=True)
for line in sys.stdin:
    groups = int(line.split()[7])
    if groups == 2:
        break
    if groups == 3:
        time.sleep(600)
    print({4: "none", 5: "failed 2000", 6: "failed 3"}.get(groups, "512"), flush=True)
