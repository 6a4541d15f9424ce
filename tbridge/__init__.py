"""Move tensors between PyTorch, TensorFlow and NumPy in one process.

Memory is shared where that is safe and copied where it must be; `explain` says which, and why.

>>> import numpy as np, tbridge
>>> tbridge.convert(np.arange(3), to="torch")
tensor([0, 1, 2])
"""

from tbridge import errors
from tbridge.contracts import Accepts, Framework, Lease, Loan, Plan, Step, TensorSpec
from tbridge.convert import (
    convert,
    empty,
    explain,
    inspect,
    leases,
    owner,
    shares_memory,
    to_numpy,
    to_tf,
    to_torch,
)
from tbridge.options import options
from tbridge.registry import frameworks, register

__version__ = "0.1.0"

__all__ = [
    "Accepts",
    "Framework",
    "Lease",
    "Loan",
    "Plan",
    "Step",
    "TensorSpec",
    "convert",
    "empty",
    "errors",
    "explain",
    "frameworks",
    "inspect",
    "leases",
    "options",
    "owner",
    "register",
    "shares_memory",
    "to_numpy",
    "to_tf",
    "to_torch",
]
