"""Checks: which memory is near."""

from __future__ import annotations

from suite.doctor.finding import Answer, Unsaid, ok, warning
from suite.doctor.machine import Machine, cpu_list

_NODES = "sys/devices/system/node"


def numa(machine: Machine) -> Answer:
    """Whether threads and tables may lie on different nodes."""
    nodes, mine = _nodes(machine), _own_nodes(machine)
    if len(nodes) == 1:
        return ok("one node")
    if len(mine) == 1:
        return ok(f"all our CPUs are on node {mine[0]} of {len(nodes)}")
    return warning(
        f"our CPUs are on {len(mine)} nodes: a table lies on the node that first wrote to it, and the threads of the "
        "others reach it more slowly",
        f"`numactl --cpunodebind={mine[0]} --membind={mine[0]} python run_bench.py ...`.",
    )


def gpu_node(machine: Machine) -> Answer:
    """Whether copies to the GPU cross between nodes."""
    gpu = machine.gpu()
    if gpu is None:
        raise Unsaid("there is no NVIDIA device")
    if len(_nodes(machine)) == 1:
        return ok("one node")
    address = pci_address(str(gpu.ask("nvmlDeviceGetPciInfo").busId))
    node = machine.number(f"sys/bus/pci/devices/{address}/numa_node")
    if node < 0:
        raise Unsaid("the firmware does not say which node the GPU is connected to")
    mine = _own_nodes(machine)
    seen = f"the GPU is connected to node {node}, our CPUs are on {', '.join(map(str, mine))}"
    if mine == [node]:
        return ok(seen)
    return warning(
        f"{seen}: rows from the other nodes cross the link between them",
        f"`numactl --cpunodebind={node} --membind={node} python run_bench.py ...`.",
    )


def _nodes(machine: Machine) -> dict[int, frozenset[int]]:
    """CPUs by node; nodes without any, as of memory alone, are left out."""
    online = cpu_list(machine.text(f"{_NODES}/online"))
    found = {node: cpu_list(machine.text(f"{_NODES}/node{node}/cpulist")) for node in sorted(online)}
    return {node: cpus for node, cpus in found.items() if cpus}


def _own_nodes(machine: Machine) -> list[int]:
    mine = machine.affinity()
    return [node for node, cpus in _nodes(machine).items() if cpus & mine]


def pci_address(bus_id: str) -> str:
    """Name below /sys of what NVML calls `00000000:3B:00.0`: sysfs writes the domain with four digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
