"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# Timings never decide a test: a busy machine makes every example slow.
settings.register_profile("ottla", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ottla")

# Commands under test know no profile of whoever runs them.
os.environ["OTTLA_PROFILE"] = ""
