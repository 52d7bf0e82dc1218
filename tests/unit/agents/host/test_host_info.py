"""What a machine is made of, from trees of files as machines have them."""

from pathlib import Path

from agents.host import host_info
from reconciler.model.observed.host_facts import Disk, Host, Link, Mount, NumaNode, RdmaPort

CPUINFO = "\n\n".join(
    f"processor : {n}\nmodel name : Xeon 8480C\nphysical id : {n // 4}\ncore id : {n % 4 // 2}"
    for n in range(8)
)
MOUNTS = """\
21 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
22 1 0:60 / /var/lib/containers/storage/overlay/ab/merged rw - overlay overlay rw
22 21 0:20 / /proc rw - proc proc rw
30 21 0:31 / /data/my\\040sets ro,nosuid shared:9 - nfs4 filer:/export/sets rw,vers=4.2
31 21 0:32 / /scratch rw - lustre 10.0.0.1@o2ib:/fs rw
bad line
"""
FILES = {
    "etc/os-release": 'NAME=Debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "proc/sys/kernel/osrelease": "6.1.0-28-amd64\n",
    "proc/cpuinfo": CPUINFO,
    "proc/meminfo": "MemTotal:       2113411072 kB\nMemFree:  1 kB\n",
    "proc/self/mountinfo": MOUNTS,
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1056705536 kB\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       1056705536 kB\n",
    "sys/devices/system/node/possible": "0-1\n",
    "sys/block/nvme0n1/size": "7501476528\n",
    "sys/block/nvme0n1/queue/rotational": "0\n",
    "sys/block/nvme0n1/device/model": "SAMSUNG MZQL23T8HCLS\n",
    "sys/block/sda/size": "2048\n",
    "sys/block/sda/queue/rotational": "1\n",
    "sys/block/loop0/size": "2048\n",
    "sys/block/sdb/size": "0\n",
    "sys/class/net/eth2/device/numa_node": "-1\n",
    "sys/class/net/eth2/speed": "-1\n",
    "sys/class/net/eth2/operstate": "down\n",
    "sys/class/net/eth10/device/numa_node": "1\n",
    "sys/class/net/eth10/speed": "200000\n",
    "sys/class/net/eth10/operstate": "up\n",
    "sys/class/net/eth10/mtu": "9000\n",
    "sys/class/net/lo/mtu": "65536\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/device/numa_node": "0\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n",
    "sys/bus/pci/devices/0000:3c:00.0/numa_node": "-1\n",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_with_everything(tmp_path: Path) -> None:
    assert host_info.read(tree(tmp_path, FILES)) == Host(
        os="Debian GNU/Linux 12 (bookworm)",
        kernel="6.1.0-28-amd64",
        cpu_model="Xeon 8480C",
        cpus=8,
        cores=4,
        sockets=2,
        memory_bytes=2113411072 * 1024,
        numa=(
            NumaNode(0, "0-3", 1056705536 * 1024),
            NumaNode(1, "4-7", 1056705536 * 1024),
        ),
        disks=(
            Disk("nvme0n1", 7501476528 * 512, model="SAMSUNG MZQL23T8HCLS"),
            Disk("sda", 2048 * 512, rotational=True),
        ),
        mounts=(
            Mount("/", "ext4", "/dev/sda2"),
            Mount("/data/my sets", "nfs4", "filer:/export/sets", read_only=True),
            Mount("/scratch", "lustre", "10.0.0.1@o2ib:/fs"),
        ),
        links=(
            Link("eth2", "down"),
            Link("eth10", "up", 200 * 10**9, 9000, 1),
        ),
        rdma=(
            RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand", 400 * 10**9, 0),
            RdmaPort("mlx5_1", 1, "DOWN"),
        ),
    )


def test_a_machine_without_files_has_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    assert host_info.read(tmp_path) == Host()


def test_odd_files_are_left_out(tmp_path: Path) -> None:
    odd = dict.fromkeys(FILES, "\x00\xff :: nonsense\n- - -\n")
    found = host_info.read(tree(tmp_path, odd))
    assert (found.cpus, found.memory_bytes, found.disks, found.mounts) == (0, 0, (), ())
    assert [link.speed_bits_per_s for link in found.links] == [None, None]


def test_what_is_told_is_bounded(tmp_path: Path) -> None:
    line = "21 1 8:2 / /m{} rw - ext4 /dev/sda2 rw\n"
    mounts = "".join(line.format(number) for number in range(1000))
    found = host_info.read(tree(tmp_path, {"proc/self/mountinfo": mounts}))
    assert len(found.mounts) == host_info.MOUNTS_MAX


def test_the_numa_node_of_a_pci_device(tmp_path: Path) -> None:
    root = tree(tmp_path, FILES)
    assert host_info.numa_of_pci("0000:3b:00.0", root) == 1
    assert host_info.numa_of_pci("0000:3c:00.0", root) is None
    assert host_info.numa_of_pci("0000:ff:00.0", root) is None
    assert host_info.numa_of_pci("../../../../../etc", root) is None


def test_this_machine_can_be_read() -> None:
    found = host_info.read()
    assert found.cpus > 0
    assert found.memory_bytes > 0
    assert found.kernel


def test_errors_of_memory_are_those_of_all_controllers(tmp_path: Path) -> None:
    assert host_info.memory_errors(tmp_path) == (0, 0)
    files = {
        "sys/devices/system/edac/mc/mc0/ce_count": "17\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "sys/devices/system/edac/mc/mc1/ce_count": "3\n",
        "sys/devices/system/edac/mc/mc1/ue_count": "2\n",
        "sys/devices/system/edac/mc/mc2/ce_count": "odd\n",
    }
    assert host_info.memory_errors(tree(tmp_path, files)) == (20, 2)
