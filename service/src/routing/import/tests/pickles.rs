//! Every opcode, and every way in which a pickle is refused.

use super::build;
use crate::routing::import::{pickle, value::Value};

/// The message that a pickle is refused with holds `wanted`.
fn check_pickle(opcodes: &[u8], wanted: &str) {
    let bytes = [b"\x80\x02", opcodes].concat();
    let message = pickle::read(&bytes).unwrap_err().to_string();
    assert!(
        message.contains(wanted),
        "{opcodes:?}: {message:?} does not say {wanted:?}"
    );
}

#[test]
fn values_of_every_opcode() {
    let check = |opcodes: &[u8], expected: Value| {
        let bytes = [b"\x80\x05", opcodes, b".rest"].concat();
        let pickle = pickle::read(&bytes).unwrap();
        assert_eq!(
            (pickle.root, pickle.length),
            (expected, bytes.len() - 4),
            "{opcodes:?}"
        );
    };
    check(b"\x88", Value::Bool(true));
    check(b"J\xfe\xff\xff\xff", Value::Int(-2));
    check(b"M\xff\xff", Value::Int(65535));
    check(b"\x8a\0", Value::Int(0));
    check(b"\x8a\x01\xff", Value::Int(-1));
    check(b"\x8a\x02\xff\0", Value::Int(255));
    check(b"\x8a\x06\0\0\0\0\0\xff", Value::Int(-(1 << 40)));
    check(
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        Value::Int(i64::MAX),
    );
    check(b"\x8b\x01\0\0\0\x80", Value::Int(-128));
    check(b"G\xbf\xf8\0\0\0\0\0\0", Value::Float(-1.5));
    check(b"NK\x070", Value::None);
    check(b"N(K\x07N1", Value::None);
    check(b"N(0", Value::None);
    check(b"K\x07\x94K\x08\x94h\0", Value::Int(7));
    check(b"K\x07r\x05\0\0\0Nj\x05\0\0\0", Value::Int(7));
    check(b"K\x092", Value::Int(9));
    let number = |kind: &str, bytes: &str| {
        let mut opcodes = b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n".to_vec();
        build::text(&mut opcodes, kind);
        opcodes.extend_from_slice(b"\x89\x88\x87Rc_codecs\nencode\n");
        build::text(&mut opcodes, bytes);
        build::text(&mut opcodes, "latin1");
        opcodes.extend_from_slice(b"\x86R\x86R");
        opcodes
    };
    check(&number("b1", "\u{1}"), Value::Bool(true));
    check(&number("u1", "\u{fe}"), Value::Int(254));
    check(&number("i1", "\u{fe}"), Value::Int(-2));
    check(&number("u2", "\u{fe}\u{ff}"), Value::Int(65534));
    check(&number("i2", "\u{fe}\u{ff}"), Value::Int(-2));
    check(&number("u4", "\0\0\0\u{80}"), Value::Int(1 << 31));
    check(&number("i4", "\0\0\0\u{80}"), Value::Int(-(1 << 31)));
    check(&number("u8", "\u{1}\0\0\0\0\0\0\0"), Value::Int(1));
    check(
        &number("i8", "\u{fe}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}"),
        Value::Int(-2),
    );
    check(&number("f2", "\0<"), Value::Float(1.0));
    check(&number("f4", "\0\0\u{80}\u{bf}"), Value::Float(-1.0));
    check(&number("f8", "\0\0\0\0\0\0\u{f0}?"), Value::Float(1.0));
    check_pickle(&number("f4", "\0\0\u{80}"), "REDUCE at");
    check_pickle(&number("f4", "\0\0\u{80}??"), "REDUCE at");
    check_pickle(&number("u1", "\u{100}"), "REDUCE at");
    check_pickle(&number("u8", "\0\0\0\0\0\0\0\u{80}"), "REDUCE at");
    let bytes = b"\x80\x05\x8d\x02\0\0\0\0\0\0\0ab.";
    let pickle = pickle::read(bytes).unwrap();
    assert_eq!(pickle.arena.text(pickle.root), Some("ab"));
}

#[test]
fn names_outside_the_allow_list_are_refused_by_name() {
    check_pickle(b"cposix\nsystem\n", "posix.system at byte 2 is refused");
    check_pickle(b"cbuiltins\neval\n", "builtins.eval at");
    check_pickle(b"ctorch\nload\n", "torch.load at");
    check_pickle(
        b"ctorch\nComplexFloatStorage\n",
        "torch.ComplexFloatStorage at",
    );
    check_pickle(
        b"\x8c\x02os\x8c\x05popen\x93",
        "os.popen at byte 13 is refused",
    );
    check_pickle(b"c\x1b[31m\nx\n", "\\u{1b}[31m.x");
    // What defaultdict is made with may be named, not called.
    check_pickle(b"cbuiltins\nlist\n)R", "REDUCE at byte 18");
}

#[test]
fn pickles_beyond_the_rules_are_refused() {
    for (pickle, wanted) in [
        (b"".as_slice(), "does not begin with a protocol"),
        (b"}.", "does not begin with a protocol"),
        (b"\x80\x01}.", "protocol 1; 2 to 5"),
        (b"\x80\x06}.", "protocol 6; 2 to 5"),
    ] {
        let message = pickle::read(pickle).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
    check_pickle(b"", "cut off at byte 2");
    check_pickle(b"N", "cut off at byte 3");
    check_pickle(b".", "STOP at byte 2 has operands");
    check_pickle(b"X\xff\xff\xff\xff", "cut off at byte 7");
    check_pickle(
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        "cut off at byte 11",
    );
    check_pickle(b"\x95\x09\0\0\0\0\0\0\0N.", "cut off at byte 13");
    check_pickle(b"X\x01\0\0\0\xff.", "text at byte 2 is not UTF-8");
    check_pickle(b"cno line feed", "cut off at byte 3");
    check_pickle(b"h\x07", "memo 7 is read at byte 2");
    check_pickle(
        b"Nr\xff\xff\xff\x7f",
        "memo 2147483647 is written; at most 1048576",
    );
    check_pickle(b"N(0t", "TUPLE at byte 5");
    check_pickle(b"N(a", "APPEND at byte 4");
    check_pickle(b"(N\x86", "TUPLE at byte 4");
    check_pickle(b")Na", "APPEND at byte 4");
    check_pickle(b"}(Nu", "SETITEMS at byte 5");
    check_pickle(b"](Nu", "SETITEMS at byte 5");
    check_pickle(b"NN\x93", "STACK_GLOBAL at byte 4");
    check_pickle(b"NQ", "BINPERSID at byte 3");
    check_pickle(
        b"(X\x03\0\0\0tapctorch\nByteStorage\nX\x01\0\0\x000NK\x01tQ",
        "BINPERSID at",
    );
    let scalar = b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02u1\x89\x88\x87R";
    check_pickle(
        &[scalar.as_slice(), b"C\x02ab\x86R"].concat(),
        "REDUCE at byte 58",
    );
    check_pickle(b"NNb", "BUILD at byte 4");
    check_pickle(b"ccollections\nOrderedDict\nNR", "REDUCE at byte 28");
    for opcode in [
        0x82, 0x90, 0x92, 0x97, b'P', b'i', b'o', b'I', b'S', 0x00, 0xff,
    ] {
        check_pickle(
            &[opcode],
            &format!("opcode {opcode:#04x} at byte 2 is not supported"),
        );
    }
    check_pickle(
        b"cnumpy\ndtype\nU\x02O8\x89\x88\x87R",
        "numpy type O8 is not",
    );
    let big_endian = b"cnumpy\ndtype\nU\x02i8\x89\x88\x87R(K\x03U\x01>tb";
    check_pickle(big_endian, "numpy type with big-endian bytes is not");
    check_pickle(&[b'N'; 1 << 21], "more than 2097152 opcodes");
    check_pickle(&b"]0".repeat((1 << 20) - 1), "cut off");
}

#[test]
fn containers_are_limited() {
    // DUP and TUPLE1 make two values of each pair of bytes, so that the steps do not end first.
    let opcodes = [b"N".as_slice(), &[0x85; (1 << 20) + 1]].concat();
    check_pickle(
        &opcodes,
        "more than 1048576 lists, tuples, dicts and tensors",
    );
}
