"""What all tests share: hypothesis' profiles, and an environment without a model hub.

`pytest --hypothesis-profile NAME` chooses a profile; CONTRIBUTING.md says which there are. No profile has a
deadline: how long an example takes depends on the machine.
"""

import os

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=50)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=3000, print_blob=True
)
settings.load_profile("quick")
