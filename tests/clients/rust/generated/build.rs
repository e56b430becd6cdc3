//! Writes the client of the bridge's OpenAPI document, which SANDGATE_OPENAPI names.

use progenitor_impl::{GenerationSettings, Generator, InterfaceStyle};
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=SANDGATE_OPENAPI");
    let document = env::var("SANDGATE_OPENAPI").expect("SANDGATE_OPENAPI names the document");
    println!("cargo:rerun-if-changed={document}");

    let text = fs::read_to_string(&document).expect("the document is readable");
    let api = serde_json::from_str(&text).expect("the document is OpenAPI 3.0");
    let mut settings = GenerationSettings::default();
    settings.with_interface(InterfaceStyle::Positional);
    let tokens = Generator::new(&settings).generate_tokens(&api).expect("a client can be generated");
    let file = syn::parse2(tokens).expect("the client parses");
    let out = env::var("OUT_DIR").expect("cargo names a directory");
    fs::write(Path::new(&out).join("client.rs"), prettyplease::unparse(&file)).expect("the client is written");
}
