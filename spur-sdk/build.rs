//! Compiles the wire protocol's messages where feature `rpc` is on.

#[cfg(feature = "rpc")]
use std::fmt::Write as _;

#[cfg(feature = "rpc")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["proto/slurm.proto", "proto/site.proto", "proto/health.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    let folder = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(folder.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    prost_build::Config::new()
        .btree_map(["."])
        .service_generator(Box::new(Calls))
        .compile_fds(descriptors)?;
    Ok(())
}

#[cfg(not(feature = "rpc"))]
fn main() {
    println!("cargo:rerun-if-changed=proto");
}

/// Writes a type for each RPC, with its path and its messages.
#[cfg(feature = "rpc")]
struct Calls;

#[cfg(feature = "rpc")]
impl prost_build::ServiceGenerator for Calls {
    fn generate(&mut self, service: prost_build::Service, text: &mut String) {
        for method in service.methods {
            let path = format!("{}.{}/{}", service.package, service.proto_name, method.proto_name);
            let lines = [
                format!("/// `{path}`."),
                "#[derive(Debug, Clone, Copy)]".to_owned(),
                format!("pub struct {};", method.name_of_type()),
                format!("impl crate::rpc::Rpc for {} {{", method.name_of_type()),
                format!("    const PATH: &'static str = \"{path}\";"),
                format!("    type Request = {};", method.input_type),
                format!("    type Response = {};", method.output_type),
                "}".to_owned(),
            ];
            for line in lines {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{line}");
            }
        }
    }
}

/// The name of the type of an RPC.
#[cfg(feature = "rpc")]
trait NameOfType {
    fn name_of_type(&self) -> String;
}

#[cfg(feature = "rpc")]
impl NameOfType for prost_build::Method {
    /// Some messages have the name of an RPC.
    fn name_of_type(&self) -> String {
        format!("{}Rpc", self.proto_name)
    }
}
