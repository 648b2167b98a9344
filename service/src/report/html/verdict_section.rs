//! What to do, why, and every line of the rule with its numbers.

use super::escape;
use crate::report::{
    show,
    summary::Summary,
    verdict::{Check, Step, Value, Verdict},
};

pub(super) fn verdict(summary: &Summary) -> String {
    let verdict = &summary.verdict;
    let mut text = format!(
        "<p class=\"over\">Verdict</p><h2 class=\"{}\">{}</h2><p class=\"why\">{}</p>\n",
        match verdict.step {
            Step::StayInDiscovery => "stay",
            Step::EnableExact | Step::TryVerified => "go",
        },
        title(verdict.step),
        escape(&verdict.why)
    );
    text += "<details open><summary>The rule, and how each line of it stands</summary>";
    text += &rules(verdict);
    text += "<p class=\"note\">Anything but discovery needs every line of the base. Exact needs \
             both of its own besides, verified all of its own. A share of \
             few proves little: it is judged by the end of its 95 % interval (Wilson) that speaks \
             against going on.</p></details>\n";
    text
}

/// As a heading.
pub(super) fn title(step: Step) -> &'static str {
    match step {
        Step::StayInDiscovery => "Stay in discovery",
        Step::EnableExact => "Enable exact loads",
        Step::TryVerified => "Try verified spans",
    }
}

fn rules(verdict: &Verdict) -> String {
    let mut text = String::from("<div class=\"rules\">");
    for (name, checks) in [
        ("Base", &verdict.base),
        ("Exact", &verdict.exact),
        ("Verified", &verdict.verified),
    ] {
        text += &format!("<div><h3>{name}</h3><ul class=\"checks\">");
        for check in checks {
            text += &line(check);
        }
        text += "</ul></div>";
    }
    text + "</div>"
}

fn line(check: &Check) -> String {
    let (class, mark, said) = match check.passes {
        true => ("yes", "✓", "holds"),
        false => ("no", "✗", "does not hold"),
    };
    let judged = check.judged.filter(|judged| *judged != Value::Unknown);
    let judged = judged.map_or_else(String::new, |judged| {
        let end = if check.is_minimum {
            "at least"
        } else {
            "at most"
        };
        format!(
            "<small>{end} {}, judged by that</small>",
            escape(&value(judged))
        )
    });
    let limit = if check.is_minimum { "≥" } else { "≤" };
    format!(
        "<li class=\"{class}\"><span class=\"tick\" role=\"img\" aria-label=\"{said}\">{mark}\
         </span><span>{}{judged}</span><span class=\"num\">{} <small>{limit} {}</small></span>\
         </li>",
        escape(check.name),
        escape(&value(check.measured)),
        escape(&value(check.limit))
    )
}

/// As people read it.
pub(in crate::report) fn value(value: Value) -> String {
    match value {
        Value::Count(count) => show::grouped(count),
        Value::Milliseconds(ms) => show::duration(ms),
        Value::Microseconds(us) => show::microseconds(us),
        Value::Share(share) => show::percent(share),
        Value::Unknown => "not known".into(),
    }
}
