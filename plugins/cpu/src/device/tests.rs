//! Topologies from made-up file trees.

use super::{Topology, parse_list};

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Topology) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let topology = Topology::read(dir.path());
    (dir, topology)
}

const NODE: &str = "sys/devices/system/node";

#[test]
fn lists_of_nodes_are_read_and_nonsense_is_left_out() {
    let cases: [(&str, &[u32]); 6] = [
        ("0\n", &[0]),
        ("0-2,5", &[0, 1, 2, 5]),
        ("", &[]),
        ("x,3", &[3]),
        ("0-4000000000", &[]),
        ("7-5", &[]),
    ];
    for (text, nodes) in cases {
        assert_eq!(parse_list(text), nodes, "{text:?}");
    }
}

#[test]
fn a_machine_that_tells_nothing_has_one_device_of_no_known_node() {
    let (_dir, topology) = tree(&[]);
    assert_eq!(topology.device_count(), 1);
    assert_eq!(topology.info(0).numa_node, -1);
    assert_eq!(topology.info(0).uuid, [0; 16]);
    assert_eq!(topology.memory(0), (0, 0));
}

#[test]
fn each_node_with_memory_is_a_device_with_its_own_memory_and_identity() {
    let (_dir, topology) = tree(&[
        (&format!("{NODE}/online"), "0-2\n"),
        (&format!("{NODE}/has_memory"), "0,2\n"),
        (
            &format!("{NODE}/node2/meminfo"),
            "Node 2 MemTotal: 100 kB\nNode 2 MemFree: 40 kB\nNode 2 FilePages: 30 kB\n\
             Node 2 Shmem: 10 kB\n",
        ),
        ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ]);
    assert_eq!(topology.device_count(), 2);
    assert_eq!((topology.node(0), topology.node(1)), (Some(0), Some(2)));
    assert_eq!(topology.memory(1), (60 * 1024, 100 * 1024));
    assert_eq!(topology.info(1).numa_node, 2);
    assert_ne!(topology.info(0).uuid, topology.info(1).uuid);
}

#[test]
fn the_limit_of_the_process_group_counts() {
    let (_dir, topology) = tree(&[
        (&format!("{NODE}/online"), "0\n"),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n"),
        ("sys/fs/cgroup/memory.max", "512000\n"),
        ("sys/fs/cgroup/memory.current", "300000\n"),
        ("sys/fs/cgroup/memory.stat", "file 200000\nshmem 100000\n"),
    ]);
    assert_eq!(topology.memory(0), (312_000, 512_000));
}
