"""The locustfile, with a master that waits longer before it calls a worker lost.

On a busy machine one may be silent for Locust's three seconds without being dead.
"""

from locust import runners

runners.HEARTBEAT_LIVENESS = 10  # seconds, since there is one heartbeat a second

from loadtests.locustfile import *  # noqa: E402, F403
