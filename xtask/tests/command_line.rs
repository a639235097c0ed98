//! What a person sees who types a command wrongly: a sentence that says what to do, at once, and exit status 2.

use std::process::Command;

/// Runs `xtask` and returns its exit status, standard output and standard error.
fn xtask(args: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args.split_whitespace())
        .output()
        .expect("the program that cargo has just built can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn usage_errors_say_what_to_do_and_end_with_2() {
    let cases = [
        ("", "usage: cargo xtask COMMAND"),
        ("tiddy", "unknown command `tiddy`"),
        ("train --slow 7=2", "give `-n 8`"),
        ("train --example cnn", "the examples are digits, softmax"),
        ("train softmax", "--example NAME"),
        ("setup --force", "usage: cargo xtask setup"),
        ("test -p flodl-none", "the crates are flodl-coord, "),
        ("test pool", "usage: cargo xtask test"),
        ("bench no-such-benchmark", "the benchmarks are"),
        ("tidy now", "tidy takes none"),
        ("ci lint", "the stages are fmt, "),
    ];
    for (args, expected) in cases {
        let (status, stdout, stderr) = xtask(args);
        assert_eq!(status, Some(2), "xtask {args}\n{stderr}");
        assert!(stderr.contains(expected), "xtask {args}\n{stderr}");
        assert!(stderr.starts_with("xtask: "), "xtask {args}\n{stderr}");
        assert_eq!(stdout, "", "xtask {args}");
    }
}

#[test]
fn help_and_lists_go_to_the_standard_output() {
    for (args, expected) in [
        ("--help", "usage: cargo xtask COMMAND"),
        ("setup --help", "--print"),
        ("ci --list", "tidy"),
        ("bench --list", ""),
    ] {
        let (status, stdout, stderr) = xtask(args);
        assert_eq!(status, Some(0), "xtask {args}\n{stderr}");
        assert!(stdout.contains(expected), "xtask {args}\n{stdout}");
    }
}
