//! Who may call: TLS, tokens, roles, tenants and limits, against the real binary.

#[cfg(test)]
mod calls;
#[cfg(test)]
#[path = "../common/mod.rs"]
#[expect(
    dead_code,
    reason = "shared with tests that start servers in their own process"
)]
mod common;
#[cfg(test)]
mod doors;
#[cfg(test)]
mod exposure;
#[cfg(test)]
mod handshakes;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod pki;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod tenants;
#[cfg(test)]
mod tls;
