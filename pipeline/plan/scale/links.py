"""What a wire carries: bandwidth of one direction of one device, and the time that the smallest message takes.

Bandwidths of presets are the rates of data sheets and standards, of which ``efficiency.LINK_SHARE`` is reached;
latencies are round figures for one step of a collective with all its software (kernel start, NCCL or TCP), not of the
wire alone. Both differ from place to place more than anything else in a plan: measure them. ``--link-gbs`` takes the
bus bandwidth that nccl-tests prints (its doc/PERFORMANCE.md defines it: the rate that a link must have had for the time
measured, whatever the number of devices); ``--link-latency-us`` half of a ping-pong's round trip, or the time of a
smallest all-reduce divided by its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.errors import SeatrialError
from pipeline.plan.scale.efficiency import LINK_SHARE, MEASURED


@dataclass(frozen=True)
class Link:
    """``gb_per_s``: 10^9 bytes a second, one direction, one device."""

    name: str
    gb_per_s: float
    latency_us: float
    source: str
    share: float = LINK_SHARE

    @property
    def bytes_per_s(self) -> float:
        return self.gb_per_s * 1e9 * self.share

    @property
    def latency_s(self) -> float:
        return self.latency_us * 1e-6


PRESETS = {
    link.name: link
    for link in (
        Link("nvlink2", 150, 5, "NVLink of V100: 300 GB/s both directions"),
        Link("nvlink3", 300, 5, "NVLink of A100: 600 GB/s both directions"),
        Link("nvlink4", 450, 5, "NVLink of H100 and H200: 900 GB/s both directions"),
        Link("nvlink5", 900, 5, "NVLink of B200: 1.8 TB/s both directions"),
        Link("infinity-fabric", 448, 8, "MI300X: seven links of 64 GB/s each way"),
        Link("pcie3", 15.75, 10, "PCI Express 3.0 x16"),
        Link("pcie4", 31.5, 10, "PCI Express 4.0 x16"),
        Link("pcie5", 63, 10, "PCI Express 5.0 x16"),
        Link("ib-hdr", 25, 10, "InfiniBand HDR, 200 Gb/s"),
        Link("ib-ndr", 50, 10, "InfiniBand NDR, 400 Gb/s"),
        Link("ethernet-1", 0.125, 60, "1 Gb/s, TCP"),
        Link("ethernet-10", 1.25, 30, "10 Gb/s, TCP"),
        Link("ethernet-25", 3.125, 30, "25 Gb/s, TCP"),
        Link("ethernet-100", 12.5, 30, "100 Gb/s, TCP"),
    )
}


@dataclass(frozen=True)
class Links:
    """``within`` joins the devices of a host, ``between`` the hosts; the same where there is one kind of link.

    A group of devices that reaches beyond one host is as fast as its slowest link, which is what a flat ring is. A
    hierarchical collective does better; no engine that is planned for here is known to use one for small messages.
    """

    within: Link
    between: Link
    per_host: int

    def of_group(self, devices: int) -> Link:
        """The link that governs ``devices`` neighbouring ones."""
        return self.within if devices <= self.per_host else self.between

    def varied(self, devices: int, gb_per_s: float | None = None, latency_us: float | None = None) -> Links:
        """With another bandwidth or latency of the link that governs ``devices``, both taken as reached."""
        old = self.of_group(devices)
        new = old
        if gb_per_s is not None:
            new = replace(new, gb_per_s=gb_per_s, share=MEASURED)
        if latency_us is not None:
            new = replace(new, latency_us=latency_us)
        if self.within == self.between:
            return Links(new, new, self.per_host)
        return replace(self, within=new) if old is self.within else replace(self, between=new)


def links_of(names: str, per_host: int | None, gb_per_s: float | None = None, latency_us: float | None = None) -> Links:
    """``NAME`` or ``WITHIN,BETWEEN``; measured figures are of the last one named.

    Raises:
        SeatrialError: an unknown name, two links without ``per_host`` or one with it.
    """
    given = [n.strip() for n in names.split(",")]
    if len(given) > 2:
        raise SeatrialError(f"--links {names!r} names {len(given)} links; expected one, or two as WITHIN,BETWEEN")
    if (len(given) == 2) != (per_host is not None):
        raise SeatrialError(
            f"--links {names!r} and --per-host {per_host}: two links (within a host, between hosts) go with "
            "--per-host, one link goes without"
        )
    last = _named(given[-1], gb_per_s, latency_us)
    return Links(_named(given[0]), last, per_host) if per_host is not None else Links(last, last, 1)


def _named(name: str, gb_per_s: float | None = None, latency_us: float | None = None) -> Link:
    link = PRESETS.get(name)
    if link is None:
        if gb_per_s is None or latency_us is None:
            raise SeatrialError(
                f"--links {name!r} is no preset ({', '.join(PRESETS)}); a link of one's own needs --link-gbs and "
                "--link-latency-us"
            )
        return Link(name, gb_per_s, latency_us, "given figures", MEASURED)
    if gb_per_s is not None:
        link = replace(link, gb_per_s=gb_per_s, share=MEASURED, source="measured bandwidth")
    return link if latency_us is None else replace(link, latency_us=latency_us)
