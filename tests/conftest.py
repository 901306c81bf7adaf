"""What all tests share: hypothesis' profiles, no model hub, and one thread per worker of xdist.

`pytest --hypothesis-profile NAME` chooses a profile; CONTRIBUTING.md says which there are. No profile has a
deadline: how long an example takes depends on the machine.
"""

import os
import signal

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As a shell starts jobs in the background; the commands that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of several workers on the same cores wait for each other most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=25)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=2000, print_blob=True
)
settings.load_profile("quick")


def pytest_sessionstart(session):
    """Compile the kernels before xdist starts workers, each of which would do it by itself."""
    if getattr(session.config.option, "numprocesses", None):
        import costcert as cc

        # More mutants than two patches touch, whose unions another kernel finds.
        votes = cc.Votes([[0, 1] * 4], [0], num_classes=2, ablation="columns:2", image_size=(1, 8))
        cc.certify(votes, ["square:1", "2*square:1"], ["costcert", "patchguard", "double-masking"])
        cc.exclusion(votes, "square:1", 1, k=1)
        cc.stability(votes, "square:1", k=1)
