//! Tests of the environment of the program.

use super::*;

fn value<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    let matched = variables.0.iter().find(|(known, _)| known == name);
    matched.and_then(|(_, value)| value.to_str())
}

#[test]
fn the_library_comes_before_others_and_only_once() {
    let mut variables = Variables(Vec::new());
    let library = Path::new("/usr/lib/annulus/libannulus_preload.so");
    for _ in 0..2 {
        variables.prepend(PRELOAD, library).unwrap();
        assert_eq!(value(&variables, PRELOAD), library.to_str());
    }
    variables.set(PRELOAD, "/a.so /b.so");
    for _ in 0..2 {
        variables.prepend(PRELOAD, library).unwrap();
        let expected = "/usr/lib/annulus/libannulus_preload.so:/a.so /b.so";
        assert_eq!(value(&variables, PRELOAD), Some(expected));
    }
    variables.set(PRELOAD, "");
    variables.prepend(PRELOAD, library).unwrap();
    assert_eq!(value(&variables, PRELOAD), library.to_str());
    assert_eq!(variables.0.len(), 1);
}

#[test]
fn a_library_that_must_be_first_is_moved_to_the_front() {
    for (before, after) in [
        ("", "libasan.so.8"),
        ("/a.so", "libasan.so.8:/a.so"),
        ("/a.so:libasan.so.8 /b.so", "libasan.so.8:/a.so:/b.so"),
        ("libasan.so.8:/a.so", "libasan.so.8:/a.so"),
    ] {
        let mut variables = Variables(Vec::new());
        variables.set(PRELOAD, before);
        variables.put_first(PRELOAD, Path::new("libasan.so.8"));
        assert_eq!(value(&variables, PRELOAD), Some(after), "{before}");
    }
}

#[test]
fn a_library_path_with_a_separator_is_refused() {
    for path in ["/with space/lib.so", "/with:colon/lib.so"] {
        let refused = Variables(Vec::new()).prepend(PRELOAD, Path::new(path));
        let Err(Fault::Usage(message)) = refused else {
            panic!("{path}");
        };
        assert!(message.contains("--library"), "{message}");
    }
}
