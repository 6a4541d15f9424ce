"""Import both frameworks once, whatever their import warns about, and set up hypothesis."""

import os
import warnings

from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

collect_ignore = ["plugin"]  # a package of its own


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
    import torch  # noqa: F401

settings.register_profile(
    "tbridge",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tbridge")
