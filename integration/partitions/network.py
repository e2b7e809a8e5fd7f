"""Network namespaces that stand for machines, joined by a bridge. Needs root on Linux.

A machine can be cut off, cannot reach another one although that one reaches it, or has a slow link.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

SUBNETS = {number: f"10.213.{number}" for number in range(7, 40)}


class NoNetworkError(Exception):
    """Namespaces cannot be made here."""


@dataclass(frozen=True)
class Machine:
    """A namespace. ``link``: the end of its link at the bridge."""

    name: str
    namespace: str
    address: str
    link: str

    def command(self, *command: str) -> list[str]:
        """Return the command that runs another one there."""
        return ["ip", "netns", "exec", self.namespace, *command]


class Network:
    """All machines, by name."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        """Use machines that ``joined`` has made."""
        self.machines = {machine.name: machine for machine in machines}

    def cut(self, name: str) -> None:
        """Cut a machine off from all others."""
        _ip("link", "set", self.machines[name].link, "down")

    def silence(self, name: str, towards: str) -> None:
        """Lose what one machine sends to another; what comes from there still arrives."""
        machine, other = self.machines[name], self.machines[towards]
        _ip("-n", machine.namespace, "route", "replace", "blackhole", f"{other.address}/32")

    def slow(self, name: str, kbit: int) -> None:
        """Limit what a machine receives, in kilobits a second."""
        limit = ("rate", f"{kbit}kbit", "burst", "16kbit", "latency", "2s")
        _run("tc", "qdisc", "replace", "dev", self.machines[name].link, "root", "tbf", *limit)

    def mend(self) -> None:
        """Make everything whole again."""
        for machine in self.machines.values():
            _ip("link", "set", machine.link, "up")
            for other in self.machines.values():
                _try("ip", "-n", machine.namespace, "route", "del", "blackhole", f"{other.address}/32")
            _try("tc", "qdisc", "del", "dev", machine.link, "root")


@contextmanager
def joined(names: Sequence[str]) -> Iterator[Network]:
    """Make machines and join them; this process is at address 1 of their network. Raises NoNetworkError."""
    machines = []
    with ExitStack() as stack:
        try:
            bridge, subnet = _add_bridge()
            stack.callback(_try, "ip", "link", "del", bridge)
            _ip("address", "add", f"{subnet}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number, name in enumerate(names):
                machine = Machine(name, f"{bridge}-{name}", f"{subnet}.{number + 10}", f"{bridge}-{number}")
                _ip("netns", "add", machine.namespace)
                stack.callback(_try, "ip", "netns", "del", machine.namespace)
                stack.callback(_try, "ip", "link", "del", machine.link)  # open connections keep a namespace for a while
                _add_link(machine, bridge, f"{machine.link}p")
                machines.append(machine)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise NoNetworkError(str(getattr(problem, "stderr", problem))) from problem
        yield Network(machines)


def _add_bridge() -> tuple[str, str]:
    """Add the bridge of a subnet that no other network has: return its name and the subnet."""
    for number, subnet in SUBNETS.items():
        try:
            _ip("link", "add", "name", f"ck{number}", "type", "bridge")
        except subprocess.CalledProcessError as problem:
            if "File exists" not in problem.stderr:
                raise
        else:
            return f"ck{number}", subnet
    raise OSError("all subnets have a network, or what an earlier process has left of one")


def _add_link(machine: Machine, bridge: str, inner: str) -> None:
    _ip("link", "add", machine.link, "type", "veth", "peer", "name", inner)
    _ip("link", "set", inner, "netns", machine.namespace)
    _ip("link", "set", machine.link, "master", bridge)
    _ip("link", "set", machine.link, "up")
    inside = ("-n", machine.namespace)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{machine.address}/24", "dev", inner)
    _ip(*inside, "link", "set", inner, "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _try(*command: str) -> None:
    """Run a command that may have nothing to do."""
    subprocess.run(command, check=False, capture_output=True)


def can_join() -> bool:
    """Return whether this user may make namespaces, and the tools are there."""
    if os.geteuid() != 0:
        return False
    try:
        with joined(["try"]):
            return True
    except NoNetworkError:
        return False
