//! `ValkeyImage`: a container image that clusters may run.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A container image that Valkey clusters may run. Configs refer to it by name.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "valkey.gomomento.com",
    version = "v1alpha1",
    kind = "ValkeyImage",
    plural = "valkeyimages",
    category = "valkey",
    status = "ValkeyImageStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "ValkeyImage allows a container image to be run by Valkey clusters. Cluster-scoped and owned by the platform team; a ValkeyConfig selects it with imageRef. While no image of a name exists, no new pod that resolves to it is made; running pods stay.",
    printcolumn(name = "Repository", type_ = "string", json_path = ".spec.repository"),
    printcolumn(name = "Tag", type_ = "string", json_path = ".spec.tag"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct ValkeyImageSpec {
    /// Image repository, registry included, for example "docker.io/valkey/valkey".
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]+$"))]
    pub repository: String,

    /// Tag, for example "9.1.0"; the image is "repository:tag". A digest ("sha256:" and 64 hex digits) is joined with
    /// "@" instead and pins the exact image.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[!-~]+$"))]
    pub tag: String,

    /// Version of Valkey in the image, for example "9.1.0". Informational; it decides which settings and ACL rules are
    /// written for nodes that are not yet running. Changing it alone rolls nothing.
    #[schemars(length(max = 128))]
    pub version: String,
}

/// Empty: nothing about an image is observed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValkeyImageStatus {}

impl ValkeyImageSpec {
    /// The image as a container names it: `repository:tag`, or `repository@sha256:…` for a digest.
    pub fn image(&self) -> String {
        let separator = if self.tag.starts_with("sha256:") { '@' } else { ':' };
        format!("{}{separator}{}", self.repository, self.tag)
    }
}
