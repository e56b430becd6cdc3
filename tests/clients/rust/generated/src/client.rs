//! The client as progenitor writes it from the bridge's own document; nothing by hand.
#![allow(clippy::all, dead_code)]

include!(concat!(env!("OUT_DIR"), "/client.rs"));
