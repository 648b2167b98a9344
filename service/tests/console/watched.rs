//! The console in a browser: numbers of real traffic, block maps, and what it says when the server
//! is gone.

use super::{
    browser::Browser,
    pages::{put_prior, with_prior},
};
use crate::common::{self, InProcess, donor, lookup, prompt, within};

/// A name that would run, if anything did.
const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\">";

async fn look_up(server: &InProcess, found: u64, unseen: u64) {
    let mut donors = server.clients.donors.clone();
    within(donors.register_donor(donor("d1", prompt(1, 512))))
        .await
        .unwrap();
    for at in 0..found + unseen {
        let seed = if at < found { 1 } else { 100 + at };
        let mut asked = prompt(seed, 512);
        asked.extend(prompt(1_000 + at, 64));
        within(donors.find_donor(lookup(asked))).await.unwrap();
    }
}

fn text_of(selector: &str) -> String {
    format!("(document.querySelector('{selector}')?.textContent ?? '')")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_real_traffic_appear() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let server = with_prior("c1").await;
    put_prior(&server, HOSTILE).await;
    browser.look(1280, "light").await;
    browser
        .open(&format!("http://{}/", server.server.http_address()))
        .await;
    browser
        .wait_for(&format!("{} === 'live'", text_of("#link")))
        .await;
    // While somebody watches, and not only from the window.
    look_up(&server, 7, 3).await;
    let lookups = text_of("#numbers .tile strong");
    browser.wait_for(&format!("{lookups} === '10'")).await;
    let found = text_of("#numbers .tile:nth-child(2) strong");
    assert_eq!(browser.value(&found).await, "70.0 %");
    let verdict = text_of("#verdict h2");
    assert_eq!(browser.value(&verdict).await, "Stay in discovery");
    let donors = text_of("#holds .num");
    assert!(
        browser
            .value(&donors)
            .await
            .as_str()
            .unwrap()
            .starts_with('1')
    );
    // Names are text.
    let names = "[...document.querySelectorAll('.pick')].map((it) => it.textContent)";
    let names = browser.value(names).await;
    assert!(
        names.as_array().unwrap().contains(&HOSTILE.into()),
        "{names}"
    );
    assert_eq!(browser.value("document.images.length").await, 0);
    assert_eq!(browser.value("document.title").await, "kvatlas");

    browser
        .value("document.querySelector('[data-prefix=c1]').click()")
        .await;
    let said = text_of("#blocks");
    browser
        .wait_for(&format!("{said}.startsWith('16 of 128 blocks')"))
        .await;
    let squares =
        "document.querySelector('#blocks path.b-all').getAttribute('d').match(/M/g).length";
    assert_eq!(browser.value(squares).await, 16);
    let ask = "{
        const form = document.getElementById('ask');
        form.elements.prefix.value = 'nothing';
        form.requestSubmit();
    }";
    browser.value(ask).await;
    browser
        .wait_for(&format!(
            "{}.includes('no prior')",
            text_of("#blocks .error")
        ))
        .await;
    browser
        .value("document.querySelector('[data-prefix=c1]').click()")
        .await;
    browser
        .wait_for(&format!("{said}.startsWith('16 of 128 blocks')"))
        .await;

    keep_pictures(&mut browser).await;
    // The one thing that failed on purpose: a prefix that is not there.
    let complaints = browser.complaints.iter();
    let others: Vec<_> = complaints
        .filter(|it| !it.contains("404 (Not Found)"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

async fn keep_pictures(browser: &mut Browser) {
    for (width, scheme, name) in [
        (1280, "light", "console-light.png"),
        (1280, "dark", "console-dark.png"),
        (360, "dark", "console-phone.png"),
    ] {
        browser.look(width, scheme).await;
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(fits).await, true, "{name}");
        browser.picture(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_when_the_server_is_gone_and_comes_back_by_itself() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let server = common::start();
    let address = server.server.http_address();
    browser.open(&format!("http://{address}/")).await;
    let said = text_of("#link");
    browser.wait_for(&format!("{said} === 'live'")).await;
    drop(server);
    browser
        .wait_for(&format!("{said}.startsWith('server gone since')"))
        .await;
    assert_eq!(browser.value("document.body.className").await, "is-gone");
    let again = common::start_with(|args| args.http_listen = address);
    browser.wait_for(&format!("{said} === 'live'")).await;
    assert_eq!(browser.value("document.body.className").await, "");
    drop(again);
}
