//! Wrong files, settings and addresses: one clear error, and the exit code that fits.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};

use crate::support::{Ended, Mesh, layer, run, run_with};

#[test]
fn a_missing_input_file() {
    ffn_server("/nowhere/x.safetensors").tells(&["/nowhere/x.safetensors", "--input"]);
}

#[test]
fn a_damaged_input_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("half.safetensors");
    let bytes = std::fs::read(layer()).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    ffn_server(path.to_str().unwrap()).tells(&["half.safetensors", "copy or export it again"]);
}

#[test]
fn an_input_file_without_a_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &[("w1", Dtype::F32, &[8, 4])]);
    ffn_server(&path).tells(&[&path, "no tensor `b1`", "w1", "w2 [width, hidden]"]);
}

#[test]
fn an_input_tensor_of_another_shape() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        &[("w1", Dtype::F32, &[8, 4]), ("b1", Dtype::F32, &[4])],
    );
    ffn_server(&path).tells(&[&path, "`b1` is F32 [4], expected F32 [8]"]);
}

#[test]
fn an_input_tensor_of_another_dtype() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &[("w1", Dtype::I32, &[8, 4])]);
    ffn_server(&path).tells(&[&path, "`w1` is I32 [8, 4], expected F32 [any, any]"]);
}

#[test]
fn a_worker_reads_its_file_before_it_joins() {
    let args = ["worker", "--scheduler", NOBODY, "--input", "/nowhere/y"];
    let ended = run(&args);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.tells(&["/nowhere/y"]);
}

#[test]
fn an_ffn_server_without_a_file() {
    let ended = run(&["server", "--handler", "ffn", "--scheduler", NOBODY]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.tells(&["ffn", "--input"]);
}

#[test]
fn weights_of_another_width_are_told_to_the_worker() {
    let dir = tempfile::tempdir().unwrap();
    let narrow = file(
        dir.path(),
        &[
            ("w1", Dtype::F32, &[8, 4]),
            ("b1", Dtype::F32, &[8]),
            ("w2", Dtype::F32, &[4, 8]),
            ("b2", Dtype::F32, &[4]),
        ],
    );
    let mesh = Mesh::new(1, 1, &[]);
    let mut server = mesh.start(&["server", "--handler", "ffn", "--input", &narrow]);
    let mut worker = mesh.start(&["worker", "--input", &layer()]);
    worker.ends_with(1).tells(&["server 0", "released"]);
    let ended = server.ends_with(0);
    assert!(ended.stderr.contains("takes f32 [any, 4]"), "{ended:?}");
    mesh.ends();
}

#[test]
fn an_answer_that_differs_from_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let zeros = file(
        dir.path(),
        &[
            ("w1", Dtype::F32, &[8, 384]),
            ("b1", Dtype::F32, &[8]),
            ("w2", Dtype::F32, &[384, 8]),
            ("b2", Dtype::F32, &[384]),
        ],
    );
    let mesh = Mesh::new(1, 1, &[]);
    let mut server = mesh.start(&["server", "--handler", "ffn", "--input", &zeros]);
    let mut worker = mesh.start(&["worker", "--input", &layer(), "--iterations", "2"]);
    let ended = worker.ends_with(1);
    ended.tells(&["largest absolute error", "same --input"]);
    assert!(
        ended.stdout.contains("p99.9"),
        "the table is shown all the same: {ended:?}"
    );
    server.ends_with(0);
}

#[test]
fn a_rank_that_is_taken_twice() {
    let mesh = Mesh::new(2, 1, &[]);
    let mut first = mesh.start(&["worker", "--rank", "1", "--dim", "8", "--iterations", "5"]);
    let mut second = mesh.start(&["worker", "--rank", "1", "--dim", "8", "--iterations", "5"]);
    // Whoever came second is refused; the other one waits.
    let refused = loop {
        if let Some(ended) = first.ended() {
            break (ended, &mut second);
        }
        if let Some(ended) = second.ended() {
            break (ended, &mut first);
        }
        std::thread::yield_now();
    };
    assert_eq!(refused.0.code, Some(3), "{refused:?}", refused = refused.0);
    refused.0.tells(&["rank 1", "taken"]);
    // With the right rank the mesh still forms.
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut third = mesh.start(&["worker", "--rank", "0", "--dim", "8", "--iterations", "5"]);
    third.ends_with(0);
    refused.1.ends_with(0);
    server.ends_with(0);
    mesh.ends();
}

#[test]
fn a_port_that_is_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let ended = run(&["scheduler", "--port", &port]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    ended.tells(&[&port, "in use", "mesh.scheduler_port"]);
}

#[test]
fn no_scheduler_there() {
    let settings = [("STEPMESH_TIMEOUTS_CONNECT_MS", "300")];
    let ended = run_with(&settings, &["worker", "--scheduler", NOBODY]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    ended.tells(&["scheduler", NOBODY]);
}

#[test]
fn no_scheduler_named() {
    let ended = run(&["worker"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.tells(&["--scheduler HOST:PORT"]);
}

#[test]
fn an_unknown_backend_is_told_with_the_nearest_name() {
    let ended = run_with(
        &[("STEPMESH_BACKEND", "cpuu")],
        &["worker", "--scheduler", NOBODY],
    );
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.tells(&["cpuu", "did you mean `cpu`"]);
}

#[test]
fn a_wrong_token() {
    let mesh = Mesh::new(1, 1, &[("mesh.token", "right")]);
    let mut stranger = mesh.start_with(&[("mesh.token", "wrong")], &["worker"]);
    stranger.ends_with(3).tells(&["token"]);
    // The mesh goes on without it.
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut worker = mesh.start(&["worker", "--dim", "8", "--iterations", "5"]);
    worker.ends_with(0);
    server.ends_with(0);
    mesh.ends();
}

#[test]
fn garbage_at_the_port_of_the_scheduler() {
    let mesh = Mesh::new(1, 1, &[]);
    let mut garbage = TcpStream::connect(("127.0.0.1", mesh.port().parse().unwrap())).unwrap();
    garbage
        .write_all(b"GET / HTTP/1.1\r\nHost: scheduler\r\n\r\n")
        .unwrap();
    let mut server = mesh.start(&["server", "--handler", "echo"]);
    let mut worker = mesh.start(&["worker", "--dim", "8", "--iterations", "5"]);
    worker.ends_with(0);
    server.ends_with(0);
    mesh.ends();
}

#[test]
fn wrong_settings() {
    for (args, texts) in [
        (
            ["config", "-o", "mesh.wrokers=1"],
            &["mesh.wrokers", "mesh.workers"][..],
        ),
        (
            ["config", "-o", "mesh.workers=many"],
            &["mesh.workers", "many"],
        ),
        (
            ["config", "--config", "/nowhere/z.toml"],
            &["/nowhere/z.toml"],
        ),
        (["config", "--log", "a=b=c"], &["log filter"]),
    ] {
        let ended = run(&args);
        assert_eq!(ended.code, Some(4), "{ended:?}");
        ended.tells(texts);
    }
}

#[test]
fn a_wrong_command_line() {
    for args in [
        &["serve"][..],
        &["server"],
        &["server", "--handler", "ehco"],
        &["worker", "--scheduler", "nowhere"],
        &["worker", "--dtype", "f23"],
        &["worker", "--rows", "1", "--input", "x"],
        &["config", "-o", "nothing"],
    ] {
        assert_eq!(run(args).code, Some(2), "{args:?}");
    }
}

fn ffn_server(input: &str) -> Ended {
    let args = [
        "server",
        "--handler",
        "ffn",
        "--scheduler",
        NOBODY,
        "--input",
        input,
    ];
    let ended = run(&args);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended
}

/// A file with these tensors of four-byte zeros.
fn file(dir: &Path, tensors: &[(&str, Dtype, &[usize])]) -> String {
    let path = dir.join("input.safetensors");
    let zeros = vec![0; 4 * 384 * 8];
    let views = tensors.iter().map(|(name, dtype, shape)| {
        let len = 4 * shape.iter().product::<usize>();
        (
            name,
            TensorView::new(*dtype, shape.to_vec(), &zeros[..len]).unwrap(),
        )
    });
    serialize_to_file(views, None, &path).unwrap();
    path.to_str().unwrap().into()
}

/// Port 1 of this host: nothing listens there.
const NOBODY: &str = "127.0.0.1:1";
