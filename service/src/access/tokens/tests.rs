//! Token files, good and bad: what they mean, and that no error quotes them.

use super::*;

const TENANT: &str = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5";
/// Stands wherever something is wrong.
const PLANTED: &str = "planted-secret-0123456789";

fn one(entry: &str) -> Result<Token, TokensError> {
    let tokens = parse(format!("{{\"tokens\": [{entry}]}}").as_bytes())?;
    Ok(tokens.into_iter().next().unwrap())
}

fn entry(role: &str, more: &str) -> String {
    format!("{{\"name\": \"a\", \"token\": \"{PLANTED}\", \"role\": \"{role}\"{more}}}")
}

#[test]
fn a_token_is_known_by_its_digest_however_it_is_given() {
    let given = one(&entry("operator", "")).unwrap();
    let digits: String = given
        .digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let by_digest = one(&format!(
        "{{\"name\": \"a\", \"sha256\": \"{digits}\", \"role\": \"operator\"}}"
    ));
    assert_eq!(by_digest.unwrap(), given);
    assert_eq!(given.digest, digest(PLANTED.as_bytes()));
    assert!(!format!("{given:?}").contains("planted"));
}

#[test]
fn what_is_left_out_is_all_for_operators_alone() {
    let scope = |role: &str, more: &str| one(&entry(role, more)).map(|it| it.grant.scope);
    assert!(scope("operator", "").unwrap().is_everything());
    assert!(
        scope("engine", ", \"tenants\": \"*\"")
            .unwrap()
            .is_everything()
    );
    assert!(scope("engine", "").is_err());
    assert!(scope("engine", ", \"tenants\": [], \"workers\": \"*\"").is_err());
    let tenants = format!(", \"tenants\": [\"{TENANT}\"]");
    let of_tenant = |workers: &str| scope("engine", &format!("{tenants}{workers}"));
    assert!(of_tenant("").is_err(), "its workers must be said");
    let named = of_tenant(", \"workers\": [\"w-1\", \"pool-*\"]").unwrap();
    assert!(named.workers.cover("pool-7") && !named.workers.cover("w-2"));
    assert!(named.namespaces.cover_tenant(TENANT) && !named.namespaces.cover_tenantless());
    let anywhere = of_tenant(", \"workers\": \"*\"").unwrap();
    assert!(anywhere.workers.cover("w-2") && !anywhere.is_everything());
    let baker = scope("baker", "").unwrap();
    assert!(!baker.namespaces.cover_tenantless() && !baker.workers.cover("w"));
}

#[test]
fn a_rate_has_a_burst() {
    let rate = |more: &str| one(&entry("operator", more)).map(|it| it.rate);
    let of = |calls_per_second_max, burst| {
        Ok(Some(Rate {
            calls_per_second_max,
            burst,
        }))
    };
    assert_eq!(rate(""), Ok(None));
    assert_eq!(rate(", \"calls_per_second_max\": 7"), of(7, 7));
    assert_eq!(
        rate(", \"calls_per_second_max\": 7, \"burst\": 9"),
        of(7, 9)
    );
    for bad in [
        ", \"burst\": 9",
        ", \"calls_per_second_max\": 0",
        ", \"calls_per_second_max\": 1000001",
        ", \"calls_per_second_max\": 1, \"burst\": 0",
        ", \"calls_per_second_max\": -1",
    ] {
        assert!(rate(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_error_names_the_place_and_quotes_nothing() {
    let check = |text: &str, begins: &str| {
        let error = parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(begins), "{error}");
        assert!(!error.contains("planted"), "{error}");
    };
    let file = |entries: &[String]| format!("{{\"tokens\": [{}]}}", entries.join(","));
    let good = entry("operator", "");
    check("", "line 1");
    check("{", "line 1");
    check("{\"tokens\": []}", "tokens: 0");
    check(&format!("{{\"{PLANTED}\": []}}"), "line 1");
    check(&format!("{{\"tokens\": \"{PLANTED}\"}}"), "line 1");
    check(&file(&[entry(PLANTED, "")]), "tokens[0].role");
    check(&file(&[good.clone(), good.clone()]), "tokens[1].name");
    let other = good.replace("\"a\"", "\"b\"");
    check(&file(&[good.clone(), other]), "tokens[1].token");
    let broken = |from: &str, to: &str| file(&[good.replace(from, to)]);
    check(&broken(PLANTED, "planted"), "tokens[0].token");
    check(
        &broken(PLANTED, "planted planted planted"),
        "tokens[0].token",
    );
    check(&broken("\"token\"", "\"sha256\""), "tokens[0].sha256");
    check(&broken("\"token\"", "\"secret\""), "line 1");
    check(&broken("\"a\"", "\"planted name\""), "tokens[0].name");
    check(&broken("\"a\"", "\"\""), "tokens[0].name");
    let more = |role: &str, more: &str| file(&[entry(role, more)]);
    check(&more("operator", ", \"sha256\": \"00\""), "tokens[0].token");
    check(
        &more("engine", ", \"tenants\": \"planted\""),
        "tokens[0].tenants",
    );
    check(
        &more("engine", ", \"tenants\": [\"planted\"]"),
        "tokens[0].tenants",
    );
    check(
        &more("engine", ", \"namespaces\": [\"planted\"]"),
        "tokens[0].namespaces",
    );
    check(
        &more("engine", ", \"tenants\": \"*\", \"namespaces\": []"),
        "tokens[0].tenants",
    );
    check(&more("baker", ", \"tenants\": \"*\""), "tokens[0].tenants");
    for workers in ["\"planted\"", "[\"\"]", "[\"planted**\"]"] {
        let workers = format!(", \"tenants\": \"*\", \"workers\": {workers}");
        check(&more("engine", &workers), "tokens[0].workers");
    }
}
