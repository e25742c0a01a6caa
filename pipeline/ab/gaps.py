"""What two sides cannot be compared in, because one of them is another project's server and lacks something."""

from __future__ import annotations

from collections.abc import Mapping

from loadtests.workload import Profile
from pipeline.ab.sides import Side


def not_comparable(sides: Mapping[str, Side], profile: Profile) -> list[str]:
    """One sentence each, the side named; empty where both sides are engines of this project.

    Args:
        sides: by their role, base and candidate.
    """
    out: list[str] = []
    for role, side in sides.items():
        if side.opened is None:
            continue
        out.append(f"queue time and causes inside the engine: the {role} keeps its own logs to itself")
        for what, identity in zip(("model", "quantisation"), (side.identities[0], side.identities[2]), strict=True):
            if "unverified" in identity.name or identity.name.startswith("unknown"):
                out.append(f"{what}: that both sides serve the same one is not proven, the {role}'s is {identity.name}")
        found = side.capabilities
        if found is None:
            continue
        if profile.output.fixed_by == "ignore_eos" and (why := found.lacking("ignore_eos")):
            out.append(f"throughput and answers' lengths: the {role} ends answers where it likes: {why}")
        if why := found.lacking("running_usage"):
            out.append(f"gaps between tokens that share a chunk: of the {role} only the chunks are seen: {why}")
        for name, figure in (
            ("prompt_logprobs", "items with choices"),
            ("deterministic", "single answers that changed"),
            ("deterministic_in_company", "single answers that changed under load"),
        ):
            if why := found.lacking(name):
                out.append(f"{figure}: the {role}: {why}")
    return out
