//! Torch's `ParameterList`, the one module that is read, and everything that only looks like it.

use super::build::{self, dict, tensor, torch};
use super::*;

const NEW: &[u8] = b"ctorch.nn.modules.container\nParameterList\n)\x81";

/// The opcodes of a dict; values are opcodes.
fn opcodes_of(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let pickle = dict(fields);
    pickle[2..pickle.len() - 1].to_vec()
}

/// The opcodes of a list of parameters with this state.
fn with_state(state: &[u8]) -> Vec<u8> {
    [NEW, state, b"b"].concat()
}

fn parameter_list(parameters: &[(&str, &[u8])]) -> Vec<u8> {
    with_state(&opcodes_of(&[("_parameters", &opcodes_of(parameters))]))
}

fn file(value: &[u8]) -> Vec<u8> {
    torch(&dict(&[("keys", value)]), &[("0", &[0; 8])])
}

/// The names that a file of `value` has are `wanted`.
#[track_caller]
fn check_names(value: &[u8], wanted: &[&str]) {
    let file = file(value);
    let opened = TensorFile::open(&file, None).unwrap();
    assert_eq!(opened.names().collect::<Vec<_>>(), wanted);
}

/// A file of `value` is refused, by name and as a prior.
#[track_caller]
fn check_refused(value: &[u8], wanted: &str) {
    let file = file(value);
    for error in [
        TensorFile::open(&file, None).unwrap_err(),
        import(&file, None).unwrap_err(),
    ] {
        let message = error.to_string();
        assert!(message.contains(wanted), "{message:?}, not {wanted:?}");
    }
}

fn half() -> Vec<u8> {
    tensor("HalfStorage", 4, 0, &[(4, 1)])
}

#[test]
fn what_torch_writes_is_named_as_a_list_is() {
    for (name, kept) in [
        ("cart_modules", "frozen"),
        ("cart_modules_protocol4", "fixed"),
        ("cart_fixed", "fixed"),
    ] {
        let file = &fixtures()[name];
        let opened = TensorFile::open(file, None).unwrap();
        let fields = ["keys", "values"];
        let fields = fields.map(|of| [format!("{kept}_{of}"), format!("trainable_{of}")]);
        let fields = fields.concat().into_iter();
        let mut wanted: Vec<_> = fields
            .flat_map(|field| (0..11).map(move |layer| format!("{field}.{layer}")))
            .collect();
        wanted.sort();
        assert_eq!(opened.names().collect::<Vec<_>>(), wanted, "{name}");
    }
}

/// The fuzzer's seed, whose checksums stop no mutation.
#[test]
fn a_stream_of_parameter_lists_reads_as_well() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/import_prior");
    let file = std::fs::read(corpus.join("parameter_lists")).unwrap();
    let mut opened = TensorFile::open(&file, None).unwrap();
    let wanted = [
        "frozen_keys.0",
        "frozen_keys.1",
        "trainable_keys.0",
        "trainable_keys.1",
    ];
    assert_eq!(opened.names().collect::<Vec<_>>(), wanted);
    let view = opened.tensor("trainable_keys.1").unwrap().unwrap();
    assert_eq!(*view.shape, [1, 2, 5, 2]);
}

#[test]
fn the_state_says_which_parameters_there_are() {
    let half = half();
    let [zero, one] = [("0", &half[..]), ("1", &half[..])];
    check_names(&parameter_list(&[one, zero]), &["keys.0", "keys.1"]);
    check_names(&parameter_list(&[]), &[]);
    check_names(NEW, &[]);
    let empty_set: &[u8] = b"c__builtin__\nset\n]\x85R";
    let parameters = opcodes_of(&[zero]);
    let state = |set| {
        let buffers = opcodes_of(&[("9", &half)]);
        opcodes_of(&[
            ("_buffers", &buffers),
            ("_parameters", b"}"),
            ("_parameters", &parameters),
            ("_non_persistent_buffers_set", set),
            ("7", &half),
        ])
    };
    for set in [empty_set, b"cbuiltins\nset\n]\x85R", b"\x8f"] {
        check_names(&with_state(&state(set)), &["keys.0"]);
    }
    // Torch 1 keeps them in an OrderedDict.
    let ordered = [
        b"ccollections\nOrderedDict\n)RX\x01\0\0\x000",
        &half[..],
        b"s",
    ]
    .concat();
    let ordered = opcodes_of(&[("_parameters", &ordered)]);
    check_names(&with_state(&ordered), &["keys.0"]);
    // A second state takes the place of the first.
    let twice = [parameter_list(&[one]), state(empty_set), b"b".to_vec()].concat();
    check_names(&twice, &["keys.0"]);
}

#[test]
fn a_state_that_is_none_is_refused() {
    for state in [
        b"]".as_slice(),
        b"N",
        b")",
        b"}",
        b"N}\x86",
        &opcodes_of(&[("_parameters", b"]")]),
        &opcodes_of(&[("_parameters", b"N")]),
        &opcodes_of(&[("parameters", b"}")]),
        &[NEW, b"b"].concat(),
    ] {
        let state = [state, b"b"].concat();
        check_refused(&[NEW, &state].concat(), "BUILD at byte");
    }
    let fields: Vec<_> = (0..64).map(|field| format!("f{field}")).collect();
    let mut fields: Vec<_> = fields.iter().map(|field| (&**field, &b"N"[..])).collect();
    fields.push(("_parameters", b"}"));
    check_refused(&with_state(&opcodes_of(&fields)), "BUILD at byte");
    check_names(&with_state(&opcodes_of(&fields[1..])), &[]);
}

#[test]
fn nothing_else_is_made_or_filled() {
    for module in [
        "ModuleList",
        "Sequential",
        "ParameterDict",
        "ParameterList2",
    ] {
        let class = format!("ctorch.nn.modules.container\n{module}\n");
        let name = format!("torch.nn.modules.container.{module} at byte");
        check_refused(class.as_bytes(), &name);
    }
    check_refused(b"ctorch.nn\nParameterList\n", "torch.nn.ParameterList at");
    check_refused(b"ccollections\nOrderedDict\n)\x81", "NEWOBJ at byte");
    check_refused(b"cbuiltins\nset\n)\x81", "NEWOBJ at byte");
    check_refused(b"ctorch._utils\n_rebuild_parameter\n)\x81", "NEWOBJ at");
    let class = &NEW[..NEW.len() - 2];
    check_refused(&[class, b"]\x81"].concat(), "NEWOBJ at byte");
    check_refused(&[class, b"N\x85\x81"].concat(), "NEWOBJ at byte");
    check_refused(&[class, b")R"].concat(), "REDUCE at byte");
    check_refused(&[NEW, b"Na"].concat(), "APPEND at byte");
    check_refused(&[NEW, b"NNs"].concat(), "SETITEM at byte");
    check_refused(b"cbuiltins\nset\n]Na\x85R", "REDUCE at byte");
    check_refused(b"cbuiltins\nset\n)R", "REDUCE at byte");
    check_refused(b"\x8f(N\x90", "opcode 0x90 at byte");
    check_refused(b"\x8fNa", "APPEND at byte");
}

#[test]
fn odd_parameters_are_named_oddly_and_no_more() {
    let half = half();
    let most = u64::MAX.to_string();
    let odd = ["18446744073709551616", &most, "-1", "01", "", "x"].map(|key| (key, &half[..]));
    let mut wanted = odd.map(|(key, _)| format!("keys.{key}"));
    wanted.sort();
    check_names(&parameter_list(&odd), &wanted.each_ref().map(|n| &**n));
    let none = [("0", &b"N"[..]), ("1", &half[..])];
    check_names(&parameter_list(&none), &["keys.1"]);
}

/// A list among its own parameters, or as its own state's.
#[test]
fn a_list_that_holds_itself_ends() {
    let itself = [NEW, b"q\0}X\x0b\0\0\0_parameters}X\x01\0\0\x000h\0ssb"].concat();
    check_names(&itself, &[]);
    let state = [NEW, b"}q\0X\x0b\0\0\0_parametersh\0sb"].concat();
    check_names(&state, &[]);
    let mut many = [NEW, b"q\0}X\x0b\0\0\0_parameters}("].concat();
    for key in 0..60 {
        build::text(&mut many, &key.to_string());
        many.extend(b"h\0");
    }
    many.extend(b"usb");
    let error = TensorFile::open(&file(&many), None).unwrap_err();
    assert!(matches!(error, ImportError::Names), "{error}");
}

/// However often the same parameters are given to lists, they are not copied.
#[test]
fn many_lists_of_the_same_parameters_take_little() {
    let mut opcodes = b"}q\0X\x0b\0\0\0_parameters}(".to_vec();
    for key in 0..100_000 {
        build::int(&mut opcodes, key);
        opcodes.push(b'N');
    }
    opcodes.extend(b"us0");
    opcodes.extend(b"ctorch.nn.modules.container\nParameterList\nq\x010)q\x02\x30(");
    opcodes.extend(b"h\x01h\x02\x81h\0b".repeat(200_000));
    opcodes.push(b't');
    let error = TensorFile::open(&file(&opcodes), None).unwrap_err();
    assert!(matches!(error, ImportError::Names), "{error}");
}

#[test]
fn lists_of_parameters_are_counted_as_containers() {
    let mut opcodes = b"ctorch.nn.modules.container\nParameterList\nq\x010)q\x02\x30".to_vec();
    // Three steps make one, so that alone they would reach the limit of steps first; the tuples
    // between them stay below the containers' limit.
    opcodes.extend(
        [b"N\x85\x85\x85\x85".as_slice(), b"h\x01h\x02\x81"]
            .concat()
            .repeat(210_000),
    );
    check_refused(&opcodes, "more than 1048576 lists, tuples, dicts");
}

#[test]
fn a_prior_takes_no_list_of_parameters() {
    for (field, wanted) in [
        ("block_affinities", "block_affinities is a ParameterList"),
        ("kmeans_blocks", "kmeans_blocks is a ParameterList"),
        (
            "kmeans_blocks_perK",
            "kmeans_blocks_perK is a ParameterList",
        ),
    ] {
        let list = parameter_list(&[("0", &half())]);
        let file = torch(&dict(&[(field, &list)]), &[("0", &[0; 8])]);
        let message = import(&file, None).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
}
